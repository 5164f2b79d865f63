"""Parity: every exported graph, run in ONNX Runtime, against the plain PyTorch modules on random inputs.

Numbers are compared by their largest error, relative to the largest expected value of the output. Integer
and boolean outputs must be identical; only in half precision may some drafted trees differ, since rounding
decides between near ties there: measured over 64 trees each, on two sets of weights, 5 % of trees of 13 nodes
and 34 % and 50 % of trees of 59 nodes have at least one node that differs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vvs.errors import ExportError
from vvs.export.compact import half_split_order
from vvs.export.draft_tree import IMPOSSIBLE
from vvs.export.graphs import DraftTreeGraph, Graph, TargetGraph, named
from vvs.manifest import ParityReport

Arrays = dict[str, NDArray[Any]]

TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2}
"""Largest error allowed, as a share of the largest expected value, by precision."""
TREE_TOLERANCE = {"fp32": 0.0, "fp16": 0.75}
"""Share of drafted trees that may differ, by precision."""
TREE_OUTPUTS = ("tree_tokens", "parents", "depth", "ancestors")


class Case(NamedTuple):
    """Sizes of one random input."""

    requests: int
    rows: int


CASES = (Case(1, 1), Case(2, 3), Case(3, 11))
# Enough trees for the share of them that differ to mean something.
TREE_CASES = (Case(1, 1), Case(2, 3), Case(24, 6))


def open_graph(file: Path) -> onnxruntime.InferenceSession:
    """A session on the CPU."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
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

    def report(self, output: str, precision: str) -> ParityReport:
        if self.compared:
            share = self.different / self.compared
            tolerance = TREE_TOLERANCE[precision] if output in TREE_OUTPUTS else 0.0
            return ParityReport(output, share, share, tolerance)
        relative = self.absolute / self.largest if self.largest else self.absolute
        return ParityReport(output, self.absolute, relative, TOLERANCE[precision])


def _comparable(expected: Arrays, actual: Arrays) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Requests whose trees have a defined order, and of those the ones whose trees are the same."""
    requests = len(expected["scores"])
    # A tree filled up with impossible nodes has ties that no order decides.
    defined = expected["scores"].min(axis=1) > IMPOSSIBLE / 2
    same = np.array(
        [all(np.array_equal(expected[n][r], actual[n][r]) for n in TREE_OUTPUTS) for r in range(requests)]
    )
    return defined, defined & same


def compare(file: Path, graph: Graph, precision: str) -> tuple[ParityReport, ...]:
    """Run ``file`` against ``graph`` (of plain modules, in the same precision) over several sizes."""
    session = open_graph(file)
    rng = torch.Generator().manual_seed(1)
    worst = {tensor.name: _Worst() for tensor in graph.outputs}
    is_tree = isinstance(graph, DraftTreeGraph)
    for case in TREE_CASES if is_tree else CASES:
        expected, actual = _run_both(session, graph, case, rng)
        everything = np.ones(len(next(iter(expected.values()))), bool)
        defined, same = _comparable(expected, actual) if is_tree else (everything, everything)
        for name, values in expected.items():
            if values.dtype.kind == "f":
                chosen = same if name == "scores" else slice(None)
                worst[name].numbers(values[chosen], actual[name][chosen])
            else:
                chosen = defined if is_tree else slice(None)
                worst[name].exact(values[chosen], actual[name][chosen])
    return tuple(worst[name].report(name, precision) for name in worst)


def failures(reports: Sequence[ParityReport]) -> list[ParityReport]:
    """Reports past their tolerance."""
    return [r for r in reports if not r.relative <= r.tolerance]


def require_parity(name: str, reports: Sequence[ParityReport]) -> None:
    """Raise ExportError if any output is past its tolerance."""
    failed = failures(reports)
    if failed:
        worst = max(failed, key=lambda r: r.relative)
        raise ExportError(
            f"graph {name}: output {worst.output} differs from the PyTorch module by {worst.relative:.2g} "
            f"(relative), but at most {worst.tolerance:g} is allowed; nothing was written"
        )


def print_parity(console: Console, graphs: dict[str, tuple[ParityReport, ...]]) -> None:
    """One line a graph and kind of output; the many key and value outputs are summed up by their worst."""
    table = Table(title="Largest difference from PyTorch", title_justify="left")
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
