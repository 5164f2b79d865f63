"""TorchEngines: the eager PyTorch modules over a device's memory, as the oracle of the device-resident loop.

Slow and simple: every call runs the module as the eager engine does and copies the results to where the loop
wants them. It allocates while it runs, so that no graph may hold it: ``DeviceLoop(..., graphs=False)``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vvs.export.eager import EagerEngine
from vvs.export.graphs import Graph
from vvs.export.model_set import ModelSet
from vvs.manifest import draft_tree_graph
from vvs.runtime.device.array import DeviceArray, host_dtype, host_view
from vvs.runtime.device.calls import bound_operands

TYPE_STRINGS = {
    "bool": "|b1",
    "uint8": "|u1",
    "uint16": "<u2",
    "float16": "<f2",
    "int32": "<i4",
    "float32": "<f4",
    "int64": "<i8",
    "float64": "<f8",
}


class TorchExecution:
    """One module at one set of shapes, over fixed memory."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray],
        device: torch.device,
    ) -> None:
        self.name = graph.name
        self.operands = bound_operands(inputs, outputs)
        self._graph = graph
        self._device = device
        self._inputs = [tensor_at(inputs[spec.name], device) for spec in graph.inputs]
        self._outputs: Sequence[Tensor] = [tensor_at(outputs[spec.name], device) for spec in graph.outputs]

    @torch.inference_mode()
    def run(self) -> None:
        """Run the module."""
        for place, result in zip(self._outputs, self._graph(*self._inputs), strict=True):
            place.copy_(result)

    def enqueue(self, stream: int) -> None:
        """Queue it on the CUDA stream of this handle."""
        taken = torch.cuda.ExternalStream(stream, device=self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(taken):
            self.run()


class TorchEngines:
    """Answers :class:`vvs.runtime.device.interface.EngineSet`.

    Args:
        models: whose modules; they are moved to the device.
        device: ``cuda``, or ``cpu`` for the stand-in's memory.

    """

    def __init__(self, models: ModelSet, device: str) -> None:
        eager = EagerEngine(models, device)
        self._device = eager.device
        self._graphs: dict[str, Graph] = {
            graph.name: graph for graph in (eager.encode_prompt, eager.target, eager.decoder)
        }
        self._graphs |= {draft_tree_graph(name): graph for name, graph in eager.drafts.items()}

    def scratch_bytes(self, graphs: tuple[str, ...]) -> int:
        """None: PyTorch has memory of its own."""
        return 0

    def execution(
        self,
        graph: str,
        inputs: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray],
        scratch: DeviceArray | None,
    ) -> TorchExecution:
        """Bind a module."""
        return TorchExecution(self._graphs[graph], inputs, outputs, self._device)


class _Exposed:
    """Memory of a GPU as other libraries take it over (the CUDA array interface, version 3)."""

    def __init__(self, array: DeviceArray) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": array.shape,
            "typestr": TYPE_STRINGS[host_dtype(array)],
            "data": (array.address, False),
            "version": 3,
        }


def tensor_at(array: DeviceArray, device: torch.device) -> Tensor:
    """Memory of the loop as a tensor; nothing is copied."""
    if device.type == "cpu":
        tensor = torch.from_numpy(host_view(array))
    else:
        tensor = torch.as_tensor(_Exposed(array), device=device)
    return tensor.view(torch.bfloat16) if array.dtype == "bfloat16" else tensor
