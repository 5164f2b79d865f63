"""The backend ``onnxruntime-cuda``: the device-resident loop on an NVIDIA GPU over ONNX Runtime, no TensorRT.

ONNX Runtime works on one stream of its own, which events keep in order with the loop's, and is bound to the
loop's addresses. It allocates while it runs, so the loop's graphs cannot hold it; it can capture its own
(``cuda_graphs``), one for every shape, except of graphs that branch.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import onnxruntime as ort

from vvs.checks import check_flag
from vvs.errors import BackendError
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.cuda import CudaDevice
from vvs.runtime.device.cuda_backend import open_gpu
from vvs.runtime.device.cuda_errors import require_success
from vvs.runtime.device.loop import DeviceLoop
from vvs.runtime.device.onnxruntime_engines import OnnxRuntimeEngines, Opener
from vvs.runtime.onnxruntime_engine import session_options
from vvs.runtime.onnxruntime_graph import CUDA_INSTALL as INSTALL
from vvs.runtime.onnxruntime_graph import CUDA_PROVIDER as NAME
from vvs.runtime.onnxruntime_graph import Graph, ProviderChoice

_logger = logging.getLogger("vvs.device")


class CudaProvider:
    """Answers :class:`vvs.runtime.device.onnxruntime_engines.Provider`.

    Args:
        device: the GPU. Its streams have handles other than 0, which ONNX Runtime takes for none.
        cuda_graphs: whether ONNX Runtime captures what it runs.

    """

    device = "cuda"

    def __init__(self, device: CudaDevice, *, cuda_graphs: bool) -> None:
        self._driver = device.driver
        self._stream: Any = device.stream()
        self._before: Any = device.event()
        self._after: Any = device.event()
        self._cuda_graphs = cuda_graphs
        self._turn = Lock()

    def open(self, graph: str, opener: Opener) -> Graph:
        """Open a graph, to be captured if it can be.

        Raises:
            BackendError: ONNX Runtime cannot open it, or would run it on the CPU.

        """
        opened = self._open_captured(graph, opener) if self._cuda_graphs else None
        opened = opened or opener(self._choice(captured=False))
        found = opened.session.get_providers()
        if NAME not in found:
            raise BackendError(
                f"ONNX Runtime cannot load its CUDA libraries and would run {graph!r} on {', '.join(found)}; "
                "check that CUDA and cuDNN are installed in the versions that onnxruntime-gpu needs"
            )
        return opened

    def run_options(self, number: int) -> ort.RunOptions:
        """Return at once, and keep a captured graph of its own for this execution."""
        options = ort.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        options.add_run_config_entry("gpu_graph_id", str(number))
        return options

    @contextmanager
    def ordered(self, stream: int) -> Iterator[None]:
        """Behind what is queued on ``stream``, and before what will be. Threads take turns."""
        own, before, after = (int(each.handle) for each in (self._stream, self._before, self._after))
        with self._turn:
            self._follow(own, before, stream)
            yield
            self._follow(stream, after, own)

    def _follow(self, later: int, event: int, earlier: int) -> None:
        """Let what is queued on ``later`` from now on wait for what is queued on ``earlier`` so far."""
        require_success(self._driver.cuEventRecord(event, earlier))
        require_success(self._driver.cuStreamWaitEvent(later, event, 0))

    def _open_captured(self, graph: str, opener: Opener) -> Graph | None:
        """Open a graph for capturing; None where ONNX Runtime refuses that."""
        try:
            return opener(self._choice(captured=True))
        except BackendError as error:
            _logger.info("%s runs without a CUDA graph: %s", graph, error)
            return None

    def _choice(self, *, captured: bool) -> ProviderChoice:
        options = {
            "device_id": "0",
            "user_compute_stream": str(int(self._stream.handle)),
            "enable_cuda_graph": "1" if captured else "0",
            "use_tf32": "0",  # fp32 is to be fp32, so that pictures are those of the CPU
        }
        return ProviderChoice(NAME, options)


def require_provider() -> None:
    """Refuse an onnxruntime that was built without CUDA.

    Raises:
        BackendError: names the package to install.

    """
    found = ort.get_available_providers()
    if NAME not in found:
        raise BackendError(
            f"the backend 'onnxruntime-cuda' needs {NAME}, but the installed onnxruntime {ort.__version__} "
            f"has {', '.join(found)}; replace it with `{INSTALL}`, or use --backend onnxruntime"
        )


def open_engines(bundle: Bundle, device: CudaDevice, *, cuda_graphs: bool) -> OnnxRuntimeEngines:
    """A bundle's graphs on ONNX Runtime on a GPU."""
    return OnnxRuntimeEngines(bundle, session_options(None), CudaProvider(device, cuda_graphs=cuda_graphs))


def open_onnxruntime_cuda(bundle: Bundle, *, cuda_graphs: bool = True) -> DeviceLoop:
    """Open the loop on a GPU.

    Args:
        bundle: what to run.
        cuda_graphs: let ONNX Runtime capture what it runs; the loop itself launches its kernels plainly.

    Raises:
        BackendError: onnxruntime has no CUDA provider or cannot load it, packages or the driver are missing
            or too old, or the GPU has not enough memory.

    """
    check_flag("cuda_graphs", cuda_graphs)
    require_provider()
    device = open_gpu()
    try:
        engines = open_engines(bundle, device, cuda_graphs=cuda_graphs)
        return DeviceLoop(device, engines, bundle, bundle.codebook, graphs=False)
    except BaseException:
        device.close()
        raise
