"""GpuWays: the ways in which this machine can run a bundle's graphs under the device-resident loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from vvs.errors import BackendError
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.interface import Device, EngineSet
from vvs.runtime.device.loop import DeviceLoop

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

Models = Callable[[], "ModelSet"]
"""The models of a bundle in PyTorch, made when they are asked for."""
REQUESTS = 3
"""Most requests of a batch in the checks."""


class Opened(NamedTuple):
    """A device and a bundle's engines on it."""

    device: Device
    engines: EngineSet


@dataclass(frozen=True)
class Way:
    """One way."""

    name: str
    missing: Callable[[], str]
    """Why it cannot be gone here; empty if it can."""
    open: Callable[[Bundle, Models], Opened]
    captures: bool = True
    """Whether its engines can be part of a captured graph."""

    @contextmanager
    def opened(self, bundle: Bundle, models: Models) -> Iterator[Opened]:
        """Open it for a while."""
        opened = self.open(bundle, models)
        try:
            yield opened
        finally:
            opened.device.close()

    @contextmanager
    def loop(
        self, bundle: Bundle, models: Models, *, graphs: bool = True, whole_image: bool = False
    ) -> Iterator[DeviceLoop]:
        """The device-resident loop over it, for a while."""
        opened = self.open(bundle, models)
        loop = DeviceLoop(
            opened.device,
            opened.engines,
            bundle,
            bundle.codebook,
            graphs=graphs and self.captures,
            whole_image=whole_image,
        )
        try:
            yield loop
        finally:
            loop.close()


def _tensorrt_missing(flavour: str) -> str:
    from vvs.runtime.tensorrt_package import load_tensorrt

    try:
        load_tensorrt(flavour)
    except BackendError as error:
        return str(error)
    return ""


def _open_tensorrt(flavour: str, bundle: Bundle, models: Models) -> Opened:
    """Build engines for the GPU at hand beside the bundle, which is a copy, and open them."""
    from vvs.export.tensorrt.builder import build_engines
    from vvs.export.tensorrt.profiles import RequestRange
    from vvs.export.tensorrt.settings import BuildSettings
    from vvs.runtime.device.cuda_backend import open_gpu
    from vvs.runtime.device.tensorrt_engines import TensorRTEngines

    most = min(REQUESTS, bundle.manifest.max_requests)
    build_engines(bundle, BuildSettings(flavour, requests=RequestRange(1, 1, most)))
    device = open_gpu()
    return Opened(device, TensorRTEngines(bundle, flavour, device))


def _onnxruntime_missing() -> str:
    from vvs.runtime.device.onnxruntime_cuda import require_provider

    try:
        require_provider()
    except BackendError as error:
        return str(error)
    return ""


def _open_onnxruntime(bundle: Bundle, models: Models, *, cuda_graphs: bool) -> Opened:
    from vvs.runtime.device.cuda_backend import open_gpu
    from vvs.runtime.device.onnxruntime_cuda import open_engines

    device = open_gpu()
    return Opened(device, open_engines(bundle, device, cuda_graphs=cuda_graphs))


def _torch_missing() -> str:
    try:
        import torch
    except ImportError as error:
        return f"PyTorch is not installed ({error})"
    return "" if torch.cuda.is_available() else f"PyTorch {torch.__version__} sees no GPU; is it a CPU build?"


def _open_torch(bundle: Bundle, models: Models) -> Opened:
    from vvs.export.torch_engines import TorchEngines
    from vvs.runtime.device.cuda_backend import open_gpu

    return Opened(open_gpu(), TorchEngines(models(), "cuda"))


def _open_stand_in(bundle: Bundle, models: Models) -> Opened:
    from vvs.runtime.device.host import HostDevice
    from vvs.runtime.device.host_engines import HostEngines
    from vvs.runtime.kernels.host import HostKernels
    from vvs.runtime.onnxruntime_engine import session_options

    return Opened(HostDevice(HostKernels(), check=True), HostEngines(bundle, session_options(1)))


GPU_WAYS = (
    *(
        Way(flavour, partial(_tensorrt_missing, flavour), partial(_open_tensorrt, flavour))
        for flavour in ("tensorrt", "tensorrt-rtx")
    ),
    *(
        Way(name, _onnxruntime_missing, partial(_open_onnxruntime, cuda_graphs=graphs), captures=False)
        for name, graphs in (("onnxruntime-cuda", False), ("onnxruntime-cuda with its own graphs", True))
    ),
    Way("eager PyTorch", _torch_missing, _open_torch, captures=False),
)
STAND_IN_WAYS = (Way("cuda-on-host", lambda: "", _open_stand_in),)
