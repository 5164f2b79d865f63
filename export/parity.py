"""Parity: every exported graph, run in ONNX Runtime, against the plain PyTorch modules on random inputs.

Numbers are compared by their largest error, relative to the largest expected value of the output. Integer and
boolean outputs must be identical. In half precision rounding decides between near ties, so two draft trees
are compared by the nodes they share (:mod:`vvs.export.tree_parity`).

The modules are in the graphs' precision, int8 weights included: what is told is whether the graphs compute
what the modules do, not what the precision costs (that is :mod:`vvs.benchmarks.precision`).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vvs.errors import ExportError
from vvs.export.bfloat16 import emulated
from vvs.export.compact import half_split_order
from vvs.export.draft_tree import IMPOSSIBLE
from vvs.export.graphs import DraftTreeGraph, Graph, TargetGraph, named
from vvs.export.tree_parity import shared_nodes, structure_of
from vvs.manifest import ParityReport

Arrays = dict[str, NDArray[Any]]

TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}
"""Largest error allowed, as a share of the largest expected value, by what is computed in."""
TREE_TOLERANCE = {"fp32": 0.0, "fp16": 0.05, "bf16": 0.25}
"""Of trees, the share that may differ in float32, or, in half precision, the share of nodes."""
METHODS = {
    "fp32": "ONNX Runtime on a CPU",
    "fp16": "ONNX Runtime on a CPU",
    "bf16": "ONNX Runtime on a CPU, each bf16 operation in float32 and its result rounded to bf16",
}
"""What runs the graphs, by what they compute in."""
TREE_OUTPUTS = ("tree_tokens", "parents", "depth", "ancestors")


class Case(NamedTuple):
    """Sizes of one random input."""

    requests: int
    rows: int


CASES = (Case(1, 1), Case(2, 3), Case(3, 11))
# Enough trees for the share of them that differ to mean something.
TREE_CASES = (Case(1, 1), Case(2, 3), Case(24, 6))


def open_graph(file: Path, compute: str = "fp32") -> onnxruntime.InferenceSession:
    """A session on the CPU, of a graph that computes in ``compute``."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Fused with its product, an int8 weight would be multiplied with activations rounded to int8.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.log_severity_level = 3
    if compute == "bf16":
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(file.parent)
        )
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return onnxruntime.InferenceSession(emulated(file), options, providers=["CPUExecutionProvider"])
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def _reordered(arrays: Arrays, prefix: str, head_dim: int) -> Arrays:
    """Give key rows the order that compact layers keep them in."""
    order = half_split_order(head_dim).numpy()
    return {name: a[..., order] if name.startswith(prefix) else a for name, a in arrays.items()}


def _run_both(
    session: onnxruntime.InferenceSession, graph: Graph, case: Case, rng: torch.Generator
) -> tuple[Arrays, Arrays]:
    """Expected and actual outputs of one random input."""
    inputs = graph.sample(case.requests, case.rows, rng)
    with torch.no_grad():
        expected = named(graph.outputs, graph(*inputs))
    feeds = named(graph.inputs, inputs)
    if isinstance(graph, TargetGraph | DraftTreeGraph):
        feeds = _reordered(feeds, "past_k", graph.geometry.head_dim)
        expected = _reordered(expected, "new_k", graph.geometry.head_dim)
    names = list(expected)
    return expected, dict(zip(names, session.run(names, feeds), strict=True))


class _Worst:
    """Largest errors of one output so far."""

    def __init__(self) -> None:
        self.absolute = 0.0
        self.largest = 0.0
        self.different = 0
        self.compared = 0

    def numbers(self, expected: NDArray[Any], actual: NDArray[Any]) -> None:
        if not expected.size:
            return
        wide, got = expected.astype(np.float64), actual.astype(np.float64)
        error = np.abs(wide - got).max()
        self.absolute = max(self.absolute, float(error) if np.isfinite(error) else float("inf"))
        self.largest = max(self.largest, float(np.abs(wide).max()))

    def exact(self, expected: NDArray[Any], actual: NDArray[Any]) -> None:
        self.different += sum(not np.array_equal(e, a) for e, a in zip(expected, actual, strict=True))
        self.compared += len(expected)

    def share(self, different: int, compared: int) -> None:
        self.different += different
        self.compared += compared

    def report(self, output: str, compute: str) -> ParityReport:
        if self.compared:
            share = self.different / self.compared
            tolerance = TREE_TOLERANCE[compute] if output == "tree_tokens" else 0.0
            return ParityReport(output, share, share, tolerance)
        relative = self.absolute / self.largest if self.largest else self.absolute
        return ParityReport(output, self.absolute, relative, TOLERANCE[compute])


def compare(file: Path, graph: Graph, compute: str) -> tuple[ParityReport, ...]:
    """Run ``file`` against ``graph`` (of plain modules, in the same precision) over several sizes.

    ``compute`` is what both compute in.
    """
    session = open_graph(file, compute)
    rng = torch.Generator().manual_seed(1)
    worst = {tensor.name: _Worst() for tensor in graph.outputs}
    is_tree = isinstance(graph, DraftTreeGraph)
    for case in TREE_CASES if is_tree else CASES:
        expected, actual = _run_both(session, graph, case, rng)
        if is_tree:
            trees = _same_trees if compute == "fp32" else _near_trees
            trees(expected, actual, worst)
        for name, values in expected.items():
            if is_tree and name in (*TREE_OUTPUTS, "scores"):
                continue
            if values.dtype.kind == "f":
                worst[name].numbers(values, actual[name])
            else:
                worst[name].exact(values, actual[name])
    return tuple(worst[name].report(name, compute) for name in worst)


def _defined(expected: Arrays) -> NDArray[np.bool_]:
    """Requests whose trees have an order: impossible nodes, which fill one up, are ties."""
    defined: NDArray[np.bool_] = expected["scores"].min(axis=1) > IMPOSSIBLE / 2
    return defined


def _same_trees(expected: Arrays, actual: Arrays, worst: Mapping[str, _Worst]) -> None:
    """Compare trees that must be the same, node by node, and the scores of those that are."""
    defined = _defined(expected)
    same = defined.copy()
    for name in TREE_OUTPUTS:
        worst[name].exact(expected[name][defined], actual[name][defined])
        same &= [np.array_equal(e, a) for e, a in zip(expected[name], actual[name], strict=True)]
    worst["scores"].numbers(expected["scores"][same], actual["scores"][same])


def _near_trees(expected: Arrays, actual: Arrays, worst: Mapping[str, _Worst]) -> None:
    """Compare trees by the nodes they share; each must be a tree in itself."""
    for request in np.flatnonzero(_defined(expected)).tolist():
        shared = shared_nodes(expected, actual, request)
        worst["tree_tokens"].share(shared.lost, shared.drafted)
        worst["scores"].numbers(shared.expected, shared.actual)
    for name, wanted in structure_of(actual["parents"]).items():
        worst[name].exact(wanted, actual[name])


def failures(reports: Sequence[ParityReport]) -> list[ParityReport]:
    """Reports past their tolerance."""
    return [r for r in reports if not r.relative <= r.tolerance]


def require_parity(name: str, reports: Sequence[ParityReport]) -> None:
    """Raise ExportError if any output is past its tolerance."""
    failed = failures(reports)
    if failed:
        worst = max(failed, key=lambda r: r.relative)
        if not math.isfinite(worst.relative):
            raise ExportError(
                f"graph {name}: output {worst.output} is not finite everywhere; keep what overflows in fp32 "
                "(--keep-fp32 auto) or choose another precision; nothing was written"
            )
        raise ExportError(
            f"graph {name}: output {worst.output} differs from the PyTorch module by {worst.relative:.2g} "
            f"(relative), but at most {worst.tolerance:g} is allowed; nothing was written"
        )


def print_parity(
    console: Console, graphs: dict[str, tuple[ParityReport, ...]], compute: str = "fp32"
) -> None:
    """One line a graph and kind of output; the many key and value outputs are summed up by their worst."""
    title = f"Largest difference from PyTorch in {compute}; {METHODS[compute]}"
    table = Table(title=title, title_justify="left")
    for column in ("graph", "output"):
        table.add_column(column)
    for column in ("absolute", "relative", "tolerance"):
        table.add_column(column, justify="right")
    for graph, reports in graphs.items():
        summed: dict[str, ParityReport] = {}
        for report in reports:
            kind = report.output.rsplit("_", 1)[0] + "_*" if report.output[-1].isdigit() else report.output
            if kind not in summed or report.relative > summed[kind].relative:
                summed[kind] = report
        for kind, r in summed.items():
            table.add_row(graph, kind, f"{r.absolute:.1e}", f"{r.relative:.1e}", f"{r.tolerance:g}")
    console.print(table)
