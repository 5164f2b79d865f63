"""HostEngines: a bundle's graphs on ONNX Runtime's CPU provider, over the host device's memory."""

from contextlib import AbstractContextManager, nullcontext

import onnxruntime as ort

from vvs.runtime.bundle import Bundle
from vvs.runtime.device.onnxruntime_engines import OnnxRuntimeEngines, Opener
from vvs.runtime.onnxruntime_engine import require_runnable
from vvs.runtime.onnxruntime_graph import CPU, Graph


class HostProvider:
    """Answers :class:`vvs.runtime.device.onnxruntime_engines.Provider`; the device orders work itself."""

    device = "cpu"

    def open(self, graph: str, opener: Opener) -> Graph:
        """Open a graph."""
        return opener(CPU)

    def run_options(self, number: int) -> ort.RunOptions | None:
        """Nothing special."""
        return None

    def ordered(self, stream: int) -> AbstractContextManager[None]:
        """No stream, no order."""
        return nullcontext()


class HostEngines(OnnxRuntimeEngines):
    """Answers :class:`vvs.runtime.device.interface.EngineSet`."""

    def __init__(self, bundle: Bundle, options: ort.SessionOptions) -> None:
        require_runnable(bundle)
        super().__init__(bundle, options, HostProvider())
