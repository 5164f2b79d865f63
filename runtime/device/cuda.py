"""CudaDevice: one GPU behind the device interface, through cuda.core and cuda.bindings (cuda-python).

Packages are imported when a device is opened, never before. Memory comes from ``cuMemAlloc``: an arena is one
allocation that lives as long as its session, so a pool would only hide what is free.
"""

import ctypes
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vvs.errors import BackendError
from vvs.runtime.cuda_driver import Gpu
from vvs.runtime.device.array import DeviceArray, host_dtype, host_view
from vvs.runtime.device.calls import Call, Copy, Enqueue, Fill, Kernel, Launch
from vvs.runtime.device.cuda_errors import INSTALL, require_driver, require_success, told
from vvs.runtime.device.interface import Event, Graph, Pinned, Stream

THREADS_PER_BLOCK = 256
BLOCKS_PER_REQUEST = 32
FIRST = 0
"""The GPU that is used; the environment variable CUDA_VISIBLE_DEVICES says which one that is."""
SCALARS: Mapping[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


class CudaGraph:
    """An executable graph, and how many nodes were captured for it."""

    def __init__(self, graph: Any, nodes: int) -> None:
        self.graph = graph
        self.nodes = nodes

    def close(self) -> None:
        """Destroy the graph."""
        self.graph.close()


class CudaPinned:
    """Page-locked host memory."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str) -> None:
        self.array = DeviceArray(address, shape, dtype)
        self._values = host_view(self.array)

    def read(self) -> NDArray[Any]:
        """See :meth:`vvs.runtime.device.interface.Pinned.read`."""
        return self._values

    def write(self, values: NDArray[Any]) -> None:
        """See :meth:`vvs.runtime.device.interface.Pinned.write`."""
        self._values[...] = values


class CudaDevice:
    """Answers :class:`vvs.runtime.device.interface.Device`.

    Args:
        modules: compiled kernels: of each kernel's name the cubin that holds it.

    Raises:
        BackendError: packages are missing, or there is no driver, too old a one, or no GPU.

    """

    threads_per_block = THREADS_PER_BLOCK
    blocks_per_request = BLOCKS_PER_REQUEST

    def __init__(self, modules: Mapping[str, bytes]) -> None:
        self._core, self._driver = load_packages()
        self.name = checked_gpu().name
        with told(f"opening {self.name}"):
            self._device: Any = self._core.Device(FIRST)
            self.use()
            self._kernels = self._load(modules)
        self._builders: dict[int, Any] = {}
        self._pinned: set[int] = set()
        self._held: set[int] = set()

    @property
    def driver(self) -> Any:
        """The bindings of the driver, for those who share the GPU with it."""
        return self._driver

    def use(self) -> None:
        """Make this GPU the calling thread's."""
        with told("taking the GPU"):
            self._device.set_current()

    def free_bytes(self) -> int:
        """What the driver says."""
        with told("asking for free memory"):
            free, _ = require_success(self._driver.cuMemGetInfo())
        return int(free)

    def allocate(self, nbytes: int) -> DeviceArray:
        """Zeroed memory."""
        with told(f"allocating {nbytes / 1e6:,.1f} MB"):
            (address,) = require_success(self._driver.cuMemAlloc(nbytes))
            self._held.add(int(address))
            require_success(self._driver.cuMemsetD8(address, 0, nbytes))
            self._device.sync()  # a memset may still run, and streams of ours wait for no other
        return DeviceArray(int(address), (nbytes,), "uint8")

    def free(self, memory: DeviceArray) -> None:
        """Wait for the GPU and give memory back."""
        with told("freeing memory"):
            self._held.discard(memory.address)
            require_success(self._driver.cuMemFree(memory.address))

    def pinned(self, shape: tuple[int, ...], dtype: str) -> CudaPinned:
        """Page-locked memory."""
        nbytes = DeviceArray(0, shape, dtype).nbytes
        with told("allocating pinned memory"):
            (address,) = require_success(self._driver.cuMemAllocHost(nbytes))
        self._pinned.add(int(address))
        return CudaPinned(int(address), shape, dtype)

    def free_pinned(self, pinned: Pinned) -> None:
        """Give page-locked memory back."""
        with told("freeing pinned memory"):
            self._pinned.discard(pinned.array.address)
            require_success(self._driver.cuMemFreeHost(pinned.array.address))

    def stream(self) -> Stream:
        """Make a stream that waits for no other."""
        with told("making a stream"):
            made: Stream = self._device.create_stream()
        return made

    def event(self) -> Event:
        """Make an event."""
        with told("making an event"):
            made: Event = self._device.create_event()
        return made

    def record(self, event: Event, stream: Any) -> None:
        """Put an event behind what is queued."""
        with told("recording an event"):
            stream.record(event)

    def wait(self, stream: Any, event: Event) -> None:
        """Let later work of ``stream`` wait."""
        with told("waiting for an event"):
            stream.wait(event)

    def issue(self, stream: Any, call: Call) -> None:
        """Queue one call, or record it if the stream is being captured."""
        with told(f"queueing {call.name}"):
            handle = stream.handle
            match call:
                case Launch():
                    self._launch(stream, call)
                case Enqueue():
                    execution: Any = call.execution
                    execution.enqueue(int(handle))
                case Copy():
                    require_success(
                        self._driver.cuMemcpyAsync(
                            call.target.address, call.source.address, call.target.nbytes, handle
                        )
                    )
                case Fill():
                    require_success(
                        self._driver.cuMemsetD8Async(
                            call.target.address, call.value, call.target.nbytes, handle
                        )
                    )

    def begin_capture(self, stream: Any) -> None:
        """Record what is issued from now on."""
        with told("beginning a capture"):
            builder = stream.create_graph_builder()
            # Another thread may draw on a stream of its own meanwhile: its calls must not end this capture.
            builder.begin_building("thread_local")
            self._builders[id(stream)] = builder

    def end_capture(self, stream: Any) -> CudaGraph:
        """Make a graph of what was recorded."""
        builder = self._builders.pop(id(stream))
        with told("ending a capture"):
            try:
                builder.end_building()
                nodes = len(builder.graph_definition.nodes())
                return CudaGraph(builder.complete(), nodes)
            finally:
                builder.close()

    def abort_capture(self, stream: Any) -> None:
        """Stop recording."""
        builder = self._builders.pop(id(stream), None)
        if builder is not None:
            with told("giving up a capture"):
                builder.close()

    def replay(self, stream: Any, graph: Graph) -> None:
        """Queue a graph."""
        if not isinstance(graph, CudaGraph):
            raise TypeError(f"{graph!r} is no graph of a GPU")
        with told("replaying a graph"):
            graph.graph.launch(stream)

    def synchronise(self, waited: Any) -> None:
        """Wait for a stream or an event."""
        with told("waiting for the GPU"):
            waited.sync()

    def upload(self, stream: Any, target: DeviceArray, values: NDArray[Any]) -> None:
        """Copy in and wait for it."""
        source = np.ascontiguousarray(values, host_dtype(target))
        if source.shape != target.shape:
            raise BackendError(f"values of shape {source.shape} were uploaded to an array {target.shape}")
        with told("copying to the GPU"):
            require_success(
                self._driver.cuMemcpyHtoDAsync(
                    target.address, source.ctypes.data, target.nbytes, stream.handle
                )
            )
            stream.sync()

    def download(self, stream: Any, source: DeviceArray) -> NDArray[Any]:
        """Copy out and wait for it."""
        values: NDArray[Any] = np.empty(source.shape, host_dtype(source))
        with told("copying from the GPU"):
            require_success(
                self._driver.cuMemcpyDtoHAsync(
                    values.ctypes.data, source.address, source.nbytes, stream.handle
                )
            )
            stream.sync()
        return values

    def close(self) -> None:
        """Free what was not freed."""
        for address in (*self._held,):
            self.free(DeviceArray(address, (0,), "uint8"))
        for address in (*self._pinned,):
            with told("freeing pinned memory"):
                require_success(self._driver.cuMemFreeHost(address))
        self._pinned.clear()

    def _load(self, modules: Mapping[str, bytes]) -> dict[str, Any]:
        loaded = {code: self._core.ObjectCode.from_cubin(code) for code in set(modules.values())}
        return {name: loaded[code].get_kernel(name) for name, code in modules.items()}

    def _launch(self, stream: Any, call: Launch) -> None:
        config = self._core.LaunchConfig(grid=call.grid, block=call.block, shmem_size=call.shared_bytes)
        kernel = self._kernels[call.kernel.name]
        self._core.launch(stream, config, kernel, *_arguments(call.kernel, call))


def load_packages() -> tuple[Any, Any]:
    """Import ``cuda.core`` and the driver's bindings.

    Raises:
        BackendError: one is missing or broken, with the command that installs it.

    """
    try:
        return import_module("cuda.core"), import_module("cuda.bindings.driver")
    except Exception as error:  # a broken installation may raise anything
        raise BackendError(
            f"the backend 'cuda' needs the packages cuda-core and cuda-bindings, which cannot be imported "
            f"({error}); install them with `{INSTALL}`"
        ) from error


def checked_gpu() -> Gpu:
    """The GPU that is used, once the driver is new enough for the installed bindings."""
    bindings = import_module("cuda.bindings")
    return require_driver(int(str(bindings.__version__).split(".")[0])).gpus[FIRST]


def _arguments(kernel: Kernel, call: Launch) -> list[Any]:
    """Arguments as the launcher takes them: a Python integer is as wide as a pointer, a ctypes one is not."""
    return [
        argument.address if isinstance(argument, DeviceArray) else SCALARS[parameter.dtype](argument)
        for parameter, argument in zip(kernel.parameters, call.arguments, strict=True)
    ]
