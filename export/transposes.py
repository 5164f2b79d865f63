"""Transposed weights: stored as they are multiplied, so that a weight has one form in all graphs.

The tracer folds most transposes of weights away, but not those of large weights that several places use;
left alone, the head would be stored twice, and runtimes would transpose it once more in memory.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray


def fold_transposes(model: ir.Model) -> None:
    """Replace every transpose of a weight by the transposed weight; it is computed when it is written."""
    graph = model.graph
    folded: dict[tuple[str, tuple[int, ...]], ir.Value] = {}
    for node in list(graph):
        weight = node.inputs[0] if node.op_type == "Transpose" else None
        name = None if weight is None else weight.name
        if weight is None or name is None or name not in graph.initializers or weight.const_value is None:
            continue
        order = _order(node, weight.const_value.shape.rank())
        key = (name, order)
        if key not in folded:
            folded[key] = _transposed(weight, order)
            graph.register_initializer(folded[key])
        ir.convenience.replace_all_uses_with(node.outputs[0], folded[key])
        graph.remove(node, safe=True)
        if not weight.uses():
            del graph.initializers[name]


def _order(node: ir.Node, rank: int) -> tuple[int, ...]:
    given = node.attributes.get("perm")
    return tuple(reversed(range(rank))) if given is None else tuple(given.as_ints())


def _transposed(weight: ir.Value, order: tuple[int, ...]) -> ir.Value:
    source = weight.const_value
    assert source is not None  # noqa: S101 - for the type checker
    name = f"{weight.name}.transposed.{'.'.join(map(str, order))}"
    shape = ir.Shape(source.shape.numpy()[axis] for axis in order)

    def compute() -> ir.TensorProtocol:
        array: NDArray[Any] = np.ascontiguousarray(np.transpose(source.numpy(), order))
        return ir.Tensor(array, dtype=source.dtype, shape=shape, name=name)

    tensor = ir.LazyTensor(compute, dtype=source.dtype, shape=shape, name=name)
    return ir.Value(name=name, shape=shape, type=ir.TensorType(source.dtype), const_value=tensor)
