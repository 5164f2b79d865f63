"""OnnxRuntimeEngines: a bundle's graphs on ONNX Runtime, bound to the addresses of a device.

The same class over host memory (the stand-in) and over a GPU's; a :class:`Provider` says which.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from vvs.runtime.bundle import Bundle
from vvs.runtime.device.array import DeviceArray
from vvs.runtime.device.calls import bound_operands
from vvs.runtime.onnxruntime_graph import Graph, ProviderChoice, failure

ONNX_BFLOAT16 = 16
"""Its number among ONNX's types: numpy has no name for it."""
FIRST_DEVICE = 0


class Provider(Protocol):
    """Where ONNX Runtime computes."""

    @property
    def device(self) -> str:
        """ONNX Runtime's name of the memory that graphs are bound to: ``cpu`` or ``cuda``."""
        ...

    def open(self, graph: str, opener: "Opener") -> Graph:
        """Open a graph on it."""
        ...

    def run_options(self, number: int) -> ort.RunOptions | None:
        """How execution ``number`` is run; every execution has a number of its own."""
        ...

    def ordered(self, stream: int) -> AbstractContextManager[None]:
        """What runs inside comes after the work queued on ``stream``, and before what is queued later."""
        ...


class Opener(Protocol):
    """Opens one graph with a choice of provider."""

    def __call__(self, choice: ProviderChoice) -> Graph:
        """Open it."""
        ...


class OnnxRuntimeExecution:
    """One graph at one set of shapes, bound to fixed memory."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray],
        provider: Provider,
        number: int,
    ) -> None:
        self.name = graph.name
        self.operands = bound_operands(inputs, outputs)
        self._graph = graph
        self._provider = provider
        self._options = provider.run_options(number)
        self._binding = graph.session.io_binding()
        for bind, arrays in ((self._binding.bind_input, inputs), (self._binding.bind_output, outputs)):
            for name, array in arrays.items():
                shape = list(array.shape)
                bind(name, provider.device, FIRST_DEVICE, element_type(array), shape, array.address)

    def run(self) -> None:
        """Run the graph."""
        try:
            self._graph.session.run_with_iobinding(self._binding, self._options)
        except Exception as error:  # ONNX Runtime has a dozen exception types and no common base
            raise failure(self.name, error) from error

    def enqueue(self, stream: int) -> None:
        """Queue it behind the work of the CUDA stream of this handle."""
        with self._provider.ordered(stream):
            self.run()


class OnnxRuntimeEngines:
    """Answers :class:`vvs.runtime.device.interface.EngineSet`.

    Args:
        bundle: whose graphs.
        options: of every session.
        provider: where they run.

    """

    def __init__(self, bundle: Bundle, options: ort.SessionOptions, provider: Provider) -> None:
        self._bundle = bundle
        self._options = options
        self._provider = provider
        self._graphs: dict[str, Graph] = {}
        self._executions = 0
        self._opening = Lock()

    def scratch_bytes(self, graphs: tuple[str, ...]) -> int:
        """None: ONNX Runtime has memory of its own."""
        return 0

    def execution(
        self,
        graph: str,
        inputs: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray],
        scratch: DeviceArray | None,
    ) -> OnnxRuntimeExecution:
        """Bind a graph."""
        with self._opening:
            if graph not in self._graphs:
                self._graphs[graph] = self._provider.open(graph, self._opener(graph))
            self._executions += 1
            return OnnxRuntimeExecution(
                self._graphs[graph], inputs, outputs, self._provider, self._executions
            )

    def _opener(self, graph: str) -> Opener:
        spec = self._bundle.manifest.graphs[graph]
        file = self._bundle.file(spec.file)
        return lambda choice: Graph(graph, file, spec, self._options, choice)


def element_type(array: DeviceArray) -> Any:
    """An array's dtype as ONNX Runtime's binding takes it."""
    return ONNX_BFLOAT16 if array.dtype == "bfloat16" else np.dtype(array.dtype)
