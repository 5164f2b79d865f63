"""GraphSource: a bundle's ONNX graph made ready for TensorRT's parser. Knows onnx_ir, not TensorRT.

The only change is that the nucleus search of a draft tree loses its ``If``: a CUDA graph cannot capture a
branch that is decided on the device, and the branch that searches is exact for every ``top_p``
(``vvs.export.nucleus``).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vvs.errors import BackendError, ExportError

if TYPE_CHECKING:
    import onnx_ir as ir

REWRITING = 1
"""Raised when what this package does to graphs, or asks of every build, changes: what is older is stale."""
NUCLEUS_PREFIX = "nucleus."


@dataclass(frozen=True)
class GraphSource:
    """One graph: what the parser gets, and how large its weights are."""

    file: Path
    """The graph's file; its weights lie in the same folder."""
    model: bytes
    """Serialised ONNX without the external weights."""
    weight_bytes: int


def read_graph(file: Path) -> GraphSource:
    """Read a graph and straighten it."""
    try:
        import onnx_ir as ir
    except ImportError as error:
        raise BackendError(
            f"building engines needs onnx-ir, which cannot be imported ({error}); "
            "install it with `pip install onnx-ir`"
        ) from error
    try:
        model = ir.load(file)
    except Exception as error:  # protobuf raises its own kinds
        raise ExportError(f"{file} cannot be read as ONNX ({error}); export the bundle again") from error
    straighten(model)
    parts = (model.graph, *model.graph.subgraphs())
    constants = [value.const_value for part in parts for value in part.initializers.values()]
    weight_bytes = sum(tensor.nbytes for tensor in constants if tensor is not None)
    return GraphSource(file, ir.to_proto(model).SerializeToString(), weight_bytes)


def straighten(model: "ir.Model") -> None:
    """Replace every nucleus ``If`` by its searching branch, in place; other branches stay."""
    graph = model.graph
    for node in list(graph):
        result = node.outputs[0]
        if node.op_type != "If" or not (result.name or "").startswith(NUCLEUS_PREFIX):
            continue
        branch = node.attributes["then_branch"].as_graph()
        searched, nodes = branch.outputs[0], list(branch)
        branch.remove(nodes)
        for moved in nodes:
            moved.name = None  # names repeat between branches
        graph.insert_before(node, nodes)
        result.replace_all_uses_with(searched)
        graph.remove(node, safe=True)
