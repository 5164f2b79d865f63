"""HostDevice: a stand-in for a GPU where there is none. It computes on the CPU and is no measure of a GPU.

Memory is plain host memory, kernels are the CUDA sources compiled for the host, engines are ONNX Runtime's.
Work that is issued does not run: it waits in its stream until something is synchronised, and then runs in
order. So a step that forgets to wait sees old values here as it might on a GPU. With ``check=True`` such
faults are errors (:mod:`vvs.runtime.device.host_checks`).
"""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from vvs.errors import BackendError
from vvs.runtime.device.arena import ALIGNMENT
from vvs.runtime.device.array import DeviceArray, host_view
from vvs.runtime.device.calls import Argument, Call, Condition, Copy, Enqueue, Fill, Kernel, Launch
from vvs.runtime.device.flow import Flow, Graph
from vvs.runtime.device.host_checks import Checks
from vvs.runtime.device.host_graphs import HostFlow, HostGraph, Work
from vvs.runtime.device.interface import DeviceFaultError, Event, Pinned, Stream

NAME = "the host stand-in for a GPU"
DEFAULT_MEMORY = 1 << 32
FREED = 0xA5
"""Freed memory is filled with this, so that using it shows."""


class HostKernels(Protocol):
    """Kernels compiled for the host."""

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: tuple[int | float, ...],
    ) -> None:
        """Run a kernel to its end; pointers are addresses."""
        ...


class HostExecution(Protocol):
    """An engine bound to host memory."""

    def run(self) -> None:
        """Run it to its end."""
        ...


class HostStream:
    """Queued work, oldest first."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: list[Work] = []
        self.issued = 0
        """Pieces of work queued so far."""
        self.done = 0
        """Of those, how many have run."""
        self.captured: list[Call] | None = None


class HostEvent:
    """A stream and how much was queued on it."""

    def __init__(self) -> None:
        self.stream: HostStream | None = None
        self.issued = 0
        self.clock: dict[int, int] = {}


class HostPinned:
    """Plain memory that is handed out only as pinned memory is used."""

    def __init__(self, device: "HostDevice", memory: DeviceArray) -> None:
        self.array = memory
        self._device = device

    def read(self) -> NDArray[Any]:
        """See :meth:`vvs.runtime.device.interface.Pinned.read`."""
        self._device.called("read")
        self._device.checks.host_access(self.array, writes=False)
        return host_view(self.array)

    def write(self, values: NDArray[Any]) -> None:
        """See :meth:`vvs.runtime.device.interface.Pinned.write`."""
        self._device.called("write")
        self._device.checks.host_access(self.array, writes=True)
        host_view(self.array)[...] = values


class HostDevice:
    """Answers :class:`vvs.runtime.device.interface.Device`.

    Args:
        kernels: the kernels that may be launched.
        check: fail on faults in the order of work and on memory that is not there.
        memory: bytes that may be allocated, so that running out of them can be shown.
        hook: called with the name of every call before it does anything; tests inject faults with it.

    """

    name = NAME
    threads_per_block = 1
    blocks_per_request = 1

    def __init__(
        self,
        kernels: HostKernels,
        *,
        check: bool = False,
        memory: int = DEFAULT_MEMORY,
        hook: Callable[[str], None] = lambda call: None,
    ) -> None:
        self._kernels = kernels
        self._memory = memory
        self._held: dict[int, tuple[DeviceArray, NDArray[np.uint8]]] = {}
        self._streams: list[HostStream] = []
        self.called = hook
        self.checks = Checks(enabled=check)

    def use(self) -> None:
        """Nothing to do: every thread may use host memory."""

    def free_bytes(self) -> int:
        """Of the bytes it was given."""
        return self._memory - sum(array.nbytes for array, _ in list(self._held.values()))

    def allocate(self, nbytes: int) -> DeviceArray:
        """Zeroed memory."""
        self.called("allocate")
        if nbytes > self.free_bytes():
            raise BackendError(f"{NAME} has {self.free_bytes()} bytes free, but {nbytes} were asked for")
        return self._hold((nbytes,), "uint8")

    def free(self, memory: DeviceArray) -> None:
        """Give memory back; what is queued and needs it fails when checked."""
        held = self._held.pop(memory.address, None)
        if held is None:
            raise BackendError(f"memory at {memory.address:#x} was freed that is not allocated")
        self.checks.forget(memory)
        held[1][...] = FREED

    def pinned(self, shape: tuple[int, ...], dtype: str) -> HostPinned:
        """Memory for copies."""
        self.called("pinned")
        return HostPinned(self, self._hold(shape, dtype))

    def free_pinned(self, pinned: Pinned) -> None:
        """Give it back."""
        self.free(pinned.array)

    def stream(self) -> HostStream:
        """Make a stream."""
        self.called("stream")
        self._streams.append(HostStream(len(self._streams)))
        return self._streams[-1]

    def event(self) -> HostEvent:
        """Make an event."""
        self.called("event")
        return HostEvent()

    def record(self, event: Event, stream: Stream) -> None:
        """Put an event behind what is queued."""
        self.called("record")
        point, queue = _event(event), _stream(stream)
        point.stream, point.issued = queue, queue.issued
        point.clock = self.checks.clock_of(queue.number)

    def wait(self, stream: Stream, event: Event) -> None:
        """Let later work of ``stream`` wait."""
        self.called("wait")
        point, queue = _event(event), _stream(stream)
        if point.stream is None:
            return
        other, issued = point.stream, point.issued
        self.checks.wait(queue.number, point.clock)
        self._queue(queue, lambda: self._run(other, issued))

    def issue(self, stream: Stream, call: Call) -> None:
        """Queue one call, or record it."""
        self.called(f"issue {call.name}")
        queue = _stream(stream)
        if queue.captured is not None:
            self.checks.capture(call)
            queue.captured.append(call)
            return
        self._queue(queue, self._work(queue, call))

    def begin_capture(self, stream: Stream) -> None:
        """Record what is issued from now on."""
        self.called("begin_capture")
        queue = _stream(stream)
        if queue.captured is not None:
            raise BackendError("a capture was begun on a stream that is being captured")
        queue.captured = []

    def end_capture(self, stream: Stream) -> Graph:
        """Make a graph of what was recorded."""
        self.called("end_capture")
        queue = _stream(stream)
        if queue.captured is None:
            raise BackendError("a capture was ended on a stream that is not being captured")
        calls, queue.captured = tuple(queue.captured), None
        return HostGraph(calls)

    def abort_capture(self, stream: Stream) -> None:
        """Stop recording."""
        _stream(stream).captured = None

    def why_no_flows(self) -> str:
        """It can always."""
        return ""

    def assemble(self, flow: Flow) -> HostFlow:
        """Make a graph of a flow."""
        self.called("assemble")
        return HostFlow(flow)

    def replay(self, stream: Stream, graph: Graph) -> None:
        """Queue a graph's calls, or a flow as one piece of work, all calls of which are checked now."""
        self.called("replay")
        queue = _stream(stream)
        match graph:
            case HostGraph():
                self.checks.replay(graph.captured_as, graph.calls)
                for call in graph.calls:
                    self._queue(queue, self._work(queue, call))
            case HostFlow():
                for held in graph.captured:
                    self.checks.replay(held.captured_as, held.calls)
                self._queue(queue, graph.prepared(partial(self._work, queue)))
            case _:
                raise TypeError(f"{graph!r} is no graph of the host device")

    def synchronise(self, waited: Stream | Event) -> None:
        """Run what is queued, up to an event or to the end of a stream."""
        self.called("synchronise")
        if isinstance(waited, HostEvent):
            if waited.stream is not None:
                self._run(waited.stream, waited.issued)
                self.checks.host_waited(waited.clock)
            return
        queue = _stream(waited)
        self._run(queue, queue.issued)
        self.checks.host_waited(self.checks.clock_of(queue.number))

    def upload(self, stream: Stream, target: DeviceArray, values: NDArray[Any]) -> None:
        """Copy in, after the stream's queued work."""
        self.called("upload")
        self.synchronise(stream)
        self.checks.host_access(target, writes=True)
        host_view(target)[...] = values

    def download(self, stream: Stream, source: DeviceArray) -> NDArray[Any]:
        """Copy out, after the stream's queued work."""
        self.called("download")
        self.synchronise(stream)
        self.checks.host_access(source, writes=False)
        return host_view(source).copy()

    def close(self) -> None:
        """Forget all memory and work."""
        for stream in self._streams:
            stream.queue.clear()
        self._held.clear()

    def _hold(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        nbytes = DeviceArray(0, shape, dtype).nbytes
        memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
        array = DeviceArray(-(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT, shape, dtype)
        self._held[array.address] = (array, memory)
        self.checks.allocated(array)
        return array

    def _queue(self, stream: HostStream, work: Work) -> None:
        stream.queue.append(work)
        stream.issued += 1

    def _work(self, stream: HostStream, call: Call) -> Work:
        """Check a call as it is queued; what it returns checks its memory again as it runs."""
        self.checks.issue(stream.number, call)

        def run() -> None:
            self.called(f"run {call.name}")
            self.checks.run(call)
            self._perform(call)

        return run

    def _perform(self, call: Call) -> None:
        match call:
            case Launch():
                arguments = tuple(_value(argument) for argument in call.arguments)
                self._kernels.launch(call.kernel, call.grid, call.block, call.shared_bytes, arguments)
            case Enqueue():
                cast("HostExecution", call.execution).run()
                self.checks.enqueued(call)
            case Copy():
                ctypes.memmove(call.target.address, call.source.address, call.target.nbytes)
            case Fill():
                ctypes.memset(call.target.address, call.value, call.target.nbytes)

    def _run(self, stream: HostStream, issued: int) -> None:
        """Run a stream's work until ``issued`` pieces are done. A fault loses the rest, as on a GPU."""
        try:
            while stream.done < issued and stream.queue:
                work = stream.queue.pop(0)
                stream.done += 1
                work()
        except BaseException:
            stream.queue.clear()
            stream.done = stream.issued
            raise


def _value(argument: Argument) -> int | float:
    if isinstance(argument, Condition):
        raise DeviceFaultError("a kernel that sets a condition was launched outside of a flow")
    return argument.address if isinstance(argument, DeviceArray) else argument


def _stream(stream: object) -> HostStream:
    if not isinstance(stream, HostStream):
        raise TypeError(f"{stream!r} is no stream of the host device")
    return stream


def _event(event: object) -> HostEvent:
    if not isinstance(event, HostEvent):
        raise TypeError(f"{event!r} is no event of the host device")
    return event
