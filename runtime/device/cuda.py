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
from vvs.runtime.device.calls import CONDITION, Argument, Call, Condition, Copy, Enqueue, Fill, Launch
from vvs.runtime.device.cuda_errors import INSTALL, require_driver, require_success, told
from vvs.runtime.device.flow import Embed, Flow, Graph, If, Switch, While, conditions_of
from vvs.runtime.device.flow_probe import why_no_flows
from vvs.runtime.device.interface import Event, Pinned, Stream

THREADS_PER_BLOCK = 256
BLOCKS_PER_REQUEST = 32
FIRST = 0
"""The GPU that is used; the environment variable CUDA_VISIBLE_DEVICES says which one that is."""
SCALARS: Mapping[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    CONDITION: ctypes.c_uint64,
}
Conditions = Mapping[Condition, Any]
"""As cuda.core made them."""


class CudaGraph:
    """An executable graph, and the definition that it was made from, which flows embed."""

    def __init__(self, graph: Any, definition: Any) -> None:
        self.graph = graph
        self.definition = definition
        self.nodes = len(definition.nodes())

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
                return CudaGraph(builder.complete(), builder.graph_definition)
            finally:
                builder.close()

    def abort_capture(self, stream: Any) -> None:
        """Stop recording."""
        builder = self._builders.pop(id(stream), None)
        if builder is not None:
            with told("giving up a capture"):
                builder.close()

    def why_no_flows(self) -> str:
        """Driver, package, or what came of trying it, once per process."""
        return why_no_flows(self._core)

    def assemble(self, flow: Flow) -> CudaGraph:
        """Make a graph of a flow, node by node: nothing is captured."""
        read = conditions_of(flow)
        with told("assembling a graph"):
            definition = self._core.graph.GraphDefinition()
            self._append(definition, flow, {each: definition.create_condition(0) for each in read})
            return CudaGraph(definition.instantiate(), definition)

    def replay(self, stream: Any, graph: Graph) -> None:
        """Queue a graph."""
        executable = _own(graph).graph
        with told("replaying a graph"):
            executable.launch(stream)

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
        self._core.launch(stream, *self._launchable(call, {}))

    def _launchable(self, call: Launch, conditions: Conditions) -> tuple[Any, ...]:
        """Configuration, kernel and arguments."""
        config = self._core.LaunchConfig(grid=call.grid, block=call.block, shmem_size=call.shared_bytes)
        return config, self._kernels[call.kernel.name], *_arguments(call, conditions)

    def _append(self, definition: Any, flow: Flow, conditions: Conditions) -> None:
        """Add a flow's nodes to an empty graph, each behind the one before."""
        last = definition
        for part in flow:
            match part:
                case Launch():
                    last = last.launch(*self._launchable(part, conditions))
                case Embed():
                    last = last.embed(_own(part.graph).definition)
                case If():
                    last = last.if_then(conditions[part.condition])
                    self._append(last.then, part.body, conditions)
                case While():
                    last = last.while_loop(conditions[part.condition])
                    self._append(last.body, part.body, conditions)
                case Switch():
                    last = last.switch(conditions[part.condition], len(part.bodies))
                    for branch, body in zip(last.branches, part.bodies, strict=True):
                        self._append(branch, body, conditions)


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


def _own(graph: Graph) -> CudaGraph:
    if not isinstance(graph, CudaGraph):
        raise TypeError(f"{graph!r} is no graph of a GPU")
    return graph


def _arguments(call: Launch, conditions: Conditions) -> list[Any]:
    """Arguments as the launcher takes them: a Python integer is as wide as a pointer, a ctypes one is not."""

    def value(argument: Argument, dtype: str) -> Any:
        if isinstance(argument, DeviceArray):
            return argument.address
        if isinstance(argument, Condition):  # its number alone: the graph must not keep what keeps the graph
            return SCALARS[dtype](int(conditions[argument].handle))
        return SCALARS[dtype](argument)

    return [
        value(argument, parameter.dtype)
        for parameter, argument in zip(call.kernel.parameters, call.arguments, strict=True)
    ]
