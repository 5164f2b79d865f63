"""The backend ``cuda``: the device-resident loop on an NVIDIA GPU, over engines built by `vvs build`."""

from vvs.checks import check_flag
from vvs.errors import EngineError
from vvs.manifest import TARGET
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.cuda import CudaDevice, checked_gpu, load_packages
from vvs.runtime.device.loop import DeviceLoop
from vvs.runtime.device.tensorrt_engines import TensorRTEngines
from vvs.runtime.engine_file import build_command, built_engines, engine_file, read_record
from vvs.runtime.kernels.nvrtc import compile_cubin
from vvs.runtime.tensorrt_package import BACKENDS, load_tensorrt


def open_cuda(
    bundle: Bundle,
    *,
    tensorrt: str | None = None,
    cuda_graphs: bool = True,
    whole_image_graph: bool = False,
    verify: bool = True,
) -> DeviceLoop:
    """Open the loop on a GPU.

    Args:
        bundle: what to run, with engines for this GPU beside it.
        tensorrt: ``tensorrt`` or ``tensorrt-rtx``; None takes what the bundle's engines were built with.
        cuda_graphs: capture steps as CUDA graphs and replay them.
        whole_image_graph: decode the images of a batch as one CUDA graph, whose kernels decide what runs, and
            tell no progress within it; where driver or GPU cannot, step by step, with one warning.
        verify: also compare the SHA-256 of every engine file.

    Raises:
        BackendError: packages or the driver are missing or too old, or the GPU has not enough memory.
        EngineError: no engine for this GPU, or a stale, foreign or damaged one.
        SettingsError: ``whole_image_graph`` without ``cuda_graphs``.

    """
    check_flag("cuda_graphs", cuda_graphs)
    check_flag("whole_image_graph", whole_image_graph)
    load_packages()
    flavour = tensorrt or built_with(bundle, checked_gpu().arch)
    load_tensorrt(flavour)
    device = open_gpu()
    try:
        engines = TensorRTEngines(bundle, flavour, device, verify=verify)
        return DeviceLoop(
            device, engines, bundle, bundle.codebook, graphs=cuda_graphs, whole_image=whole_image_graph
        )
    except BaseException:
        device.close()
        raise


def open_gpu() -> CudaDevice:
    """The GPU with the kernels of the loop.

    Raises:
        BackendError: packages or the driver are missing or too old, or there is no GPU.

    """
    load_packages()
    return CudaDevice(compile_cubin(checked_gpu().arch).modules)


def built_with(bundle: Bundle, arch: str) -> str:
    """Which TensorRT the bundle's engines for an architecture were built with.

    Raises:
        EngineError: there are none; names the command that builds them.

    """
    path = engine_file(bundle.path, TARGET, arch)
    if path.is_file():
        builder = read_record(path).identity.builder
        return next(name for name in BACKENDS if name.replace("-", "_") == builder)
    others = sorted({other for _, other, _ in built_engines(bundle.path)})
    found = f"only for {', '.join(others)}" if others else "none at all"
    raise EngineError(
        f"{bundle.path} has no engines for {arch}, {found}; "
        f"build them with `{build_command(bundle.path, BACKENDS[0], arch)}`, or with {BACKENDS[1]}"
    )
