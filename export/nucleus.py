"""The ONNX form of :func:`vvs.export.draft_tree.nucleus`: an ``If`` around the search, so top-p 1 is free.

Tracing leaves one ``vvs::Nucleus`` node a level; :func:`lower_nuclei` replaces it. Runtimes that want no
control flow (CUDA graphs capture none) can inline the ``then`` branch: it is right for every ``top_p``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vvs.export.draft_tree import IMPOSSIBLE, NARROWINGS, NUCLEUS, PARTS


class _Constants:
    """Constants of the main graph, each there once; subgraphs see them too."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph

    def __call__(self, name: str, array: NDArray[Any]) -> ir.Value:
        full = f"nucleus.{name}"
        if full not in self.graph.initializers:
            tensor = ir.tensor(array, name=full)
            self.graph.register_initializer(ir.val(full, const_value=tensor))
        return self.graph.initializers[full]


class _Body:
    """Nodes of one subgraph, written like arithmetic."""

    def __init__(self, prefix: str) -> None:
        self.tape = ir.tape.Tape()
        self.prefix = prefix

    def op(self, kind: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Append one node and return its output."""
        out = self.tape.op(kind, inputs, attributes=attributes)
        out.name = f"{self.prefix}.{len(self.tape.nodes)}"
        return out

    def graph(self, result: ir.Value, like: ir.Value) -> ir.Graph:
        """The finished subgraph."""
        result.type, result.shape = like.type, like.shape
        return ir.Graph((), (result,), nodes=self.tape.nodes, name=self.prefix)


def _search(logs: ir.Value, top_p: ir.Value, constant: _Constants, prefix: str) -> ir.Graph:
    """The nucleus by repeated narrowing; step by step as in :func:`vvs.export.draft_tree.nucleus`."""
    body = _Body(prefix)
    op = body.op
    last = constant("last", np.array([-1], np.int64))
    inner = constant("inner", np.array([2], np.int64))
    parts = constant("parts", np.array(PARTS, np.float32))
    steps = constant("steps", np.arange(1, PARTS, dtype=np.float32) / np.float32(PARTS))
    zero, one = (constant(str(x), np.array(x, np.float32)) for x in (0, 1))
    bound = op("Unsqueeze", top_p, constant("columns", np.array([1, 2], np.int64)))
    probabilities = op("Exp", logs)
    wide_logs, wide_probabilities = (op("Unsqueeze", x, inner) for x in (logs, probabilities))
    low = op("Sub", op("ReduceMin", logs, last), one)
    width = op("Sub", op("ReduceMax", logs, last), low)
    for _ in range(NARROWINGS):
        thresholds = op("Unsqueeze", op("Add", low, op("Mul", width, steps)), last)
        likelier = op("Greater", wide_logs, thresholds)
        mass = op("ReduceSum", op("Where", likelier, wide_probabilities, zero), last, keepdims=0)
        passed = op("Cast", op("GreaterOrEqual", mass, bound), to=int(ir.DataType.FLOAT))
        share = op("Div", op("ReduceSum", passed, last), parts)
        low = op("Add", low, op("Mul", width, share))
        width = op("Div", width, parts)
    inside = op("Or", op("Greater", logs, low), op("GreaterOrEqual", bound, one))
    kept = op("ReduceSum", op("Where", inside, probabilities, zero), last)
    shift = op("Where", op("Less", bound, one), op("Log", kept), zero)
    impossible = constant("impossible", np.array(IMPOSSIBLE, np.float32))
    return body.graph(op("Where", inside, op("Sub", logs, shift), impossible), logs)


def _unchanged(logs: ir.Value, prefix: str) -> ir.Graph:
    body = _Body(prefix)
    return body.graph(body.op("Identity", logs), logs)


def _wanted(graph: ir.Graph, first: ir.Node, top_p: ir.Value, constant: _Constants) -> ir.Value:
    """Scalar bool: does any request want a nucleus?"""
    one = constant("1", np.array(1, np.float32))
    least = ir.node("ReduceMin", [top_p], attributes={"keepdims": 0})
    below = ir.node("Less", [least.outputs[0], one])
    least.outputs[0].name, below.outputs[0].name = "nucleus.least", "nucleus.wanted"
    below.outputs[0].dtype, below.outputs[0].shape = ir.DataType.BOOL, ir.Shape(())
    graph.insert_before(first, (least, below))
    return below.outputs[0]


def lower_nuclei(model: ir.Model) -> None:
    """Replace every placeholder by an ``If``, in place."""
    graph = model.graph
    nodes: Sequence[ir.Node] = [n for n in graph if f"{n.domain}::{n.op_type}" == NUCLEUS]
    if not nodes:
        return
    constant = _Constants(graph)
    wanted = _wanted(graph, nodes[0], nodes[0].inputs[1], constant)  # type: ignore[arg-type]
    for i, node in enumerate(nodes):
        logs, top_p = node.inputs
        assert logs is not None and top_p is not None  # noqa: S101, PT018 - the operation has two inputs
        branches = {
            "then_branch": _search(logs, top_p, constant, f"nucleus.{i}"),
            "else_branch": _unchanged(logs, f"whole.{i}"),
        }
        chosen = ir.node("If", [wanted], attributes=branches)
        chosen.outputs[0].name = f"nucleus.{i}.logs"
        chosen.outputs[0].type, chosen.outputs[0].shape = logs.type, logs.shape
        graph.insert_before(node, chosen)
        node.outputs[0].replace_all_uses_with(chosen.outputs[0])
        graph.remove(node, safe=True)
    model.opset_imports.pop(NUCLEUS.split("::")[0], None)
