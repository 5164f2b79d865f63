"""HostEngines: a bundle's graphs on ONNX Runtime, over the host device's memory."""

from collections.abc import Mapping
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from vvs.runtime.bundle import Bundle
from vvs.runtime.device.array import DeviceArray, host_view
from vvs.runtime.device.calls import bound_operands
from vvs.runtime.onnxruntime_engine import require_runnable
from vvs.runtime.onnxruntime_graph import Call, Graph


class HostExecution:
    """One graph bound to host memory."""

    def __init__(
        self, graph: Graph, inputs: Mapping[str, DeviceArray], outputs: Mapping[str, DeviceArray]
    ) -> None:
        self.name = graph.name
        self.operands = bound_operands(inputs, outputs)
        self._call = Call(graph, _views(inputs), _views(outputs), {})

    def run(self) -> None:
        """Run the graph."""
        self._call.run()


class HostEngines:
    """Answers :class:`vvs.runtime.device.interface.EngineSet`."""

    def __init__(self, bundle: Bundle, options: ort.SessionOptions) -> None:
        require_runnable(bundle)
        self._bundle = bundle
        self._options = options
        self._graphs: dict[str, Graph] = {}

    def scratch_bytes(self, graphs: tuple[str, ...]) -> int:
        """None: ONNX Runtime has memory of its own."""
        return 0

    def execution(
        self,
        graph: str,
        inputs: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray],
        scratch: DeviceArray | None,
    ) -> HostExecution:
        """Bind a graph."""
        if graph not in self._graphs:
            spec = self._bundle.manifest.graphs[graph]
            self._graphs[graph] = Graph(graph, self._bundle.file(spec.file), spec, self._options)
        return HostExecution(self._graphs[graph], inputs, outputs)


def _views(arrays: Mapping[str, DeviceArray]) -> dict[str, NDArray[Any]]:
    return {name: host_view(array) for name, array in arrays.items()}
