"""Graphs to ONNX: trace, name, describe and store. Knows nothing of bundles.

All graphs of one folder share one file of weights; equal tensors are stored once. Only small constants
stay inside the graph files.
"""

import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor
from onnxscript.optimizer import optimize_ir
from torch import nn

from vvs.export.deferred import deferred_weights
from vvs.export.graphs import Graph, Tensors
from vvs.export.nucleus import lower_nuclei
from vvs.export.transposes import fold_transposes

OPSET = 20
WEIGHTS_FILE = "weights.bin"
# Tensors up to this size stay in the graph file, where optimisers find them at once.
INLINE_BYTES = 1024
# Elements of a tensor from which on nothing is computed of it while tracing.
LARGE = 8192
# Offsets in the weights file; a page, so that readers can map single tensors.
ALIGNMENT = 4096
# Sizes of the traced example: 0 and 1 would be taken for constants.
TRACED_REQUESTS, TRACED_ROWS = 2, 5

ONNX_DTYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int64": ir.DataType.INT64,
    "bool": ir.DataType.BOOL,
}


class _Traced(nn.Module):
    """A graph whose inputs are all positional, as tracing wants them."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.inner = graph

    def forward(self, *inputs: torch.Tensor) -> Tensors:
        out: Tensors = self.inner(*inputs)
        return out


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the tracer's warnings about itself from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def trace(graph: Graph, guidance_rows: int) -> ir.Model:
    """Trace a graph with symbolic batch and row counts.

    Args:
        graph: in evaluation mode, on the CPU.
        guidance_rows: g, engine rows a request.

    """
    requests = torch.export.Dim("R")
    sizes = {
        "R": requests,
        "B": guidance_rows * requests if guidance_rows > 1 else requests,
        "T": torch.export.Dim("T"),
        "A": torch.export.Dim("A"),
    }
    shapes = tuple(
        {axis: sizes[size] for axis, size in enumerate(tensor.shape) if isinstance(size, str)}
        for tensor in graph.inputs
    )
    example = graph.sample(TRACED_REQUESTS, TRACED_ROWS, torch.Generator().manual_seed(0))
    traced = _Traced(graph).eval()
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            traced,
            example,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=(shapes,),
            input_names=[tensor.name for tensor in graph.inputs],
            output_names=[tensor.name for tensor in graph.outputs],
            verbose=False,
            optimize=False,
        )
        if program is None:
            raise RuntimeError("the tracer returned no program")
        _fill_in(program.model, traced)
        optimize_ir(program.model, should_fold=_may_fold, input_size_limit=LARGE)
    lower_nuclei(program.model)
    fold_transposes(program.model)
    return _described(program.model, graph)


def _fill_in(model: ir.Model, module: nn.Module) -> None:
    """Give deferred weights their values, computed whenever they are read, before anything looks at them."""
    for name, compute in deferred_weights(module).items():
        value = model.graph.initializers.get(name)
        if value is None:
            continue  # not part of this graph
        stand_in = value.const_value
        assert stand_in is not None  # noqa: S101 - for the type checker
        value.const_value = ir.LazyTensor(
            lambda compute=compute, name=name: TorchTensor(compute(), name),  # type: ignore[misc]
            dtype=stand_in.dtype,
            shape=ir.Shape(stand_in.shape.numpy()),
            name=name,
        )


def _may_fold(node: ir.Node) -> bool | None:
    """Leave what works on large weights as it is, so that none is computed or copied; None: as usual."""
    constants = [value.const_value for value in node.inputs if value is not None]
    return False if any(tensor is not None and tensor.size > LARGE for tensor in constants) else None


def _described(model: ir.Model, graph: Graph) -> ir.Model:
    """Give inputs and outputs the contract's shapes; drop the tracer's notes about sources and paths."""
    for values, specs in ((model.graph.inputs, graph.inputs), (model.graph.outputs, graph.outputs)):
        for value, tensor in zip(values, specs, strict=True):
            if value.name != tensor.name or value.dtype != ONNX_DTYPES[tensor.dtype]:
                raise RuntimeError(
                    f"graph {graph.name}: traced {value.name} {value.dtype}, "
                    f"expected {tensor.name} {tensor.dtype}"
                )
            value.shape = ir.Shape(tensor.shape)
    model.metadata_props.clear()
    model.doc_string = None
    for part in (model.graph, *model.graph.subgraphs()):
        part.metadata_props.clear()
        part.doc_string = None
        for node in part:
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
        for value in (*part.inputs, *part.initializers.values()):
            value.metadata_props.clear()
            value.doc_string = None
    model.graph.name = graph.name
    return model


class GraphWriter:
    """Writes graphs into one folder, their weights into one shared file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[tuple[object, ...], tuple[int, int]] = {}
        self._end = 0

    def write(self, model: ir.Model, file: str) -> None:
        """Write one graph; its large tensors go to the shared file, unless they are there already."""
        with (self.folder / WEIGHTS_FILE).open("ab") as weights:
            for part in (model.graph, *model.graph.subgraphs()):
                for value in part.initializers.values():
                    tensor = value.const_value
                    if tensor is not None and tensor.nbytes > INLINE_BYTES:
                        value.const_value = self._outside(tensor, weights)
        ir.save(model, self.folder / file)

    def _outside(self, tensor: ir.TensorProtocol, weights) -> ir.ExternalTensor:  # type: ignore[no-untyped-def]
        data = tensor.tobytes()
        key = (tensor.dtype, tuple(tensor.shape.numpy()), hashlib.sha256(data).digest())
        if key not in self._places:
            padding = -self._end % ALIGNMENT
            weights.write(b"\0" * padding)
            weights.write(data)
            self._places[key] = (self._end + padding, len(data))
            self._end += padding + len(data)
        offset, length = self._places[key]
        return ir.ExternalTensor(
            WEIGHTS_FILE,
            offset,
            length,
            tensor.dtype,
            shape=tensor.shape,  # type: ignore[arg-type]
            name=tensor.name or "",
            base_dir=self.folder,
        )
