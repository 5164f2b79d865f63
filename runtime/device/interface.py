"""The device interface: what the loop asks of a device, answered by CUDA and by a host stand-in.

Work is queued on streams and runs in their order; nothing waits for it but :meth:`Device.synchronise`. Two
streams are ordered by events only. Addresses never change while their memory is allocated.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from vvs.errors import BackendError
from vvs.runtime.device.array import DeviceArray
from vvs.runtime.device.calls import Call, Execution
from vvs.runtime.device.flow import Flow, Graph


class DeviceFaultError(BackendError):
    """A mistake of ours in the order of work or the use of memory, found where a device checks for it."""


class Stream(Protocol):
    """A queue of work."""


class Event(Protocol):
    """A point in a stream that another stream, or the host, can wait for."""


class Pinned(Protocol):
    """Host memory that the device can copy to and from while the host goes on."""

    @property
    def array(self) -> DeviceArray:
        """As the device sees it."""
        ...

    def read(self) -> NDArray[Any]:
        """What lies in it, until it is written again. Its last write must have been waited for."""
        ...

    def write(self, values: NDArray[Any]) -> None:
        """Fill it. Its last read by the device must have been waited for."""
        ...


class Device(Protocol):
    """One device. Errors are :class:`vvs.errors.BackendError`, one sentence each."""

    @property
    def name(self) -> str:
        """What to call it in reports and errors."""
        ...

    @property
    def threads_per_block(self) -> int:
        """Threads that a block of our kernels is launched with."""
        ...

    @property
    def blocks_per_request(self) -> int:
        """Blocks that share a request's work, in kernels that can divide it."""
        ...

    def use(self) -> None:
        """Make it the calling thread's device; before anything else that a thread asks of it."""
        ...

    def free_bytes(self) -> int:
        """Memory that could still be allocated."""
        ...

    def allocate(self, nbytes: int) -> DeviceArray:
        """Zeroed device memory, ``[nbytes]`` uint8."""
        ...

    def free(self, memory: DeviceArray) -> None:
        """Give back what :meth:`allocate` returned."""
        ...

    def pinned(self, shape: tuple[int, ...], dtype: str) -> Pinned:
        """Host memory for copies; freed with the device."""
        ...

    def free_pinned(self, pinned: Pinned) -> None:
        """Give back what :meth:`pinned` returned."""
        ...

    def stream(self) -> Stream:
        """Make a stream."""
        ...

    def event(self) -> Event:
        """Make an event; unrecorded, waiting for it is no wait."""
        ...

    def record(self, event: Event, stream: Stream) -> None:
        """Put an event behind what is queued on ``stream`` so far."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what is queued on ``stream`` from now on wait for ``event``."""
        ...

    def issue(self, stream: Stream, call: Call) -> None:
        """Queue one call."""
        ...

    def begin_capture(self, stream: Stream) -> None:
        """Record what is issued to ``stream`` from now on in place of queueing it."""
        ...

    def end_capture(self, stream: Stream) -> Graph:
        """Make a graph of what was recorded."""
        ...

    def abort_capture(self, stream: Stream) -> None:
        """Stop recording and forget what was recorded; no error if nothing is being recorded."""
        ...

    def why_no_flows(self) -> str:
        """Why no flow can be assembled here; empty if it can. The first call may take seconds."""
        ...

    def assemble(self, flow: Flow) -> Graph:
        """Make a graph of a flow of captured graphs; to be asked for only where flows can be assembled.

        Raises:
            BackendError: the device refuses it.

        """
        ...

    def replay(self, stream: Stream, graph: Graph) -> None:
        """Queue a graph."""
        ...

    def synchronise(self, waited: Stream | Event) -> None:
        """Let the host wait for a stream or an event. Faults of queued work are raised here."""
        ...

    def upload(self, stream: Stream, target: DeviceArray, values: NDArray[Any]) -> None:
        """Copy from ordinary host memory behind what is queued, and wait: for setting up, never in a step."""
        ...

    def download(self, stream: Stream, source: DeviceArray) -> NDArray[Any]:
        """Copy to ordinary host memory behind what is queued, and wait: for setting up, never in a step."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class EngineSet(Protocol):
    """A bundle's engines on one device."""

    def scratch_bytes(self, graphs: tuple[str, ...]) -> int:
        """Device memory that these graphs need while they run; they run one at a time."""
        ...

    def execution(
        self,
        graph: str,
        inputs: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray],
        scratch: DeviceArray | None,
    ) -> Execution:
        """Bind a graph at the shapes of ``inputs``.

        Raises:
            BackendError, EngineError: a shape that no profile holds, a name that is missing or unknown.

        """
        ...
