"""The backend ``cuda-on-host``: the device-resident loop on the host stand-in, for tests where no GPU is.

It runs what a GPU runs, kernel by kernel, on the CPU. It says nothing about how fast a GPU is, and it is
slower than the backend ``onnxruntime``, which decides on the host.
"""

from collections.abc import Callable

from vvs.checks import check_flag
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.host import DEFAULT_MEMORY, HostDevice
from vvs.runtime.device.host_engines import HostEngines
from vvs.runtime.device.loop import DeviceLoop
from vvs.runtime.kernels.host import HostKernels
from vvs.runtime.onnxruntime_engine import session_options


def open_cuda_on_host(
    bundle: Bundle,
    *,
    threads: int | None = None,
    cuda_graphs: bool = True,
    whole_image_graph: bool = False,
    check: bool = False,
    memory: int = DEFAULT_MEMORY,
    hook: Callable[[str], None] = lambda call: None,
) -> DeviceLoop:
    """Open the loop.

    Args:
        bundle: what to run; float32 or float16.
        threads: threads of one graph execution; None uses every CPU this process may run on.
        cuda_graphs: capture steps and replay them, as on a GPU.
        whole_image_graph: decode a whole image as one graph, as on a GPU.
        check: fail on faults in the order of work and on memory that is not there.
        memory: bytes that the stand-in has.
        hook: called with the name of every call of the device before it does anything.

    Raises:
        BackendError: no C++ compiler, or a bundle in bf16.
        SettingsError: ``whole_image_graph`` without ``cuda_graphs``.

    """
    check_flag("cuda_graphs", cuda_graphs)
    check_flag("whole_image_graph", whole_image_graph)
    check_flag("check", check)
    device = HostDevice(HostKernels(), check=check, memory=memory, hook=hook)
    engines = HostEngines(bundle, session_options(threads))
    return DeviceLoop(
        device, engines, bundle, bundle.codebook, graphs=cuda_graphs, whole_image=whole_image_graph
    )
