"""bf16 graphs where no hardware runs them: every operation in float32, every result rounded to bf16.

ONNX Runtime's CPU provider has bf16 casts and no other bf16 operation. So each operation on bf16 values gets
casts around it: its inputs are widened (exactly), its outputs rounded back. That is what matrix units do,
which multiply bf16 numbers and add in float32; it says nothing of the order in which a GPU adds.
"""

from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

_CASTS = ("Cast", "CastLike")


def emulated(file: Path) -> bytes:
    """The graph in ``file`` as a model that a CPU runs, with float32 in- and outputs where it had bf16 ones.

    Its weights stay in their file, so it must be opened with that file's folder at hand.
    """
    model = ir.load(file)
    _widen(model.graph)
    serialised: bytes = ir.to_proto(model).SerializeToString()
    return serialised


def _is_bf16(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.BFLOAT16


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", [value], attributes={"to": int(to)})
    out = node.outputs[0]
    out.name, out.shape, out.dtype = name, value.shape, to
    return node


def _widen(graph: ir.Graph) -> None:
    wide: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        if node.op_type not in _CASTS:
            for i, value in enumerate(node.inputs):
                if value is not None and _is_bf16(value):
                    node.replace_input_with(i, _widened(graph, node, value, wide))
            for value in node.outputs:
                if _is_bf16(value):
                    _round(graph, node, value)
    _wide_interface(graph)


def _widened(graph: ir.Graph, before: ir.Node, value: ir.Value, known: dict[ir.Value, ir.Value]) -> ir.Value:
    if value not in known:
        cast = _cast(value, ir.DataType.FLOAT, f"{value.name}.wide")
        graph.insert_before(before, cast)
        known[value] = cast.outputs[0]
    return known[value]


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """Let ``node`` give float32, and cast that to bf16 for all who read it."""
    value.dtype = ir.DataType.FLOAT
    cast = _cast(value, ir.DataType.BFLOAT16, f"{value.name}.rounded")
    graph.insert_after(node, cast)
    rounded = cast.outputs[0]
    _replace(graph, value, rounded, but=cast)


def _replace(graph: ir.Graph, old: ir.Value, new: ir.Value, but: ir.Node) -> None:
    for user, i in tuple(old.uses()):
        if user is not but:
            user.replace_input_with(i, new)
    for i, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[i] = new


def _wide_interface(graph: ir.Graph) -> None:
    """Float32 inputs and outputs in place of bf16 ones, under the same names."""
    first = next(iter(graph))
    for i, value in enumerate(tuple(graph.inputs)):
        if _is_bf16(value):
            given = ir.Value(name=value.name, shape=value.shape, type=ir.TensorType(ir.DataType.FLOAT))
            cast = _cast(given, ir.DataType.BFLOAT16, f"{value.name}.rounded")
            value.name = f"{value.name}.bf16"
            graph.inputs[i] = given
            graph.insert_before(first, cast)
            _replace(graph, value, cast.outputs[0], but=cast)
    last = list(graph)[-1]
    casts: list[ir.Node] = []
    for i, value in enumerate(tuple(graph.outputs)):
        if _is_bf16(value):
            name = (value.name or "").removesuffix(".rounded")
            for holder in _named(graph, name):
                holder.name = f"{name}.narrow"
            casts.append(_cast(value, ir.DataType.FLOAT, name))
            graph.outputs[i] = casts[-1].outputs[0]
    graph.insert_after(last, casts)


def _named(graph: ir.Graph, name: str) -> Iterable[ir.Value]:
    return [value for node in graph for value in node.outputs if value.name == name]
