"""Checks: what the host device watches for in its checking mode. Every fault is a DeviceFaultError sentence.

- memory that is not allocated, or no longer: when work is queued, and again when it runs
- two streams that touch the same memory, one of them writing, with no event between them
- the host touching memory that queued work still writes, or writes that queued work still reads
- a graph replayed although an engine has been bound to other memory, or to other shapes, since its capture
- an engine captured that has never run plainly at its shapes

Order is told by vector clocks: every stream counts its work and knows, of every other stream, up to where its
own work waits for it.
"""

from bisect import bisect_right

from vvs.runtime.device.array import DeviceArray
from vvs.runtime.device.calls import Call, Enqueue, Execution, Program, Signature, signature
from vvs.runtime.device.interface import DeviceFaultError

Clock = dict[int, int]


class _Region:
    """One allocation, and who touched which part of it last."""

    def __init__(self, array: DeviceArray) -> None:
        self.end = array.end
        self.parts: dict[tuple[int, int], tuple[Clock, Clock]] = {}
        """By start and end: of each stream, its last read and its last write."""


class Checks:
    """The checking mode; does nothing unless ``enabled``."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._starts: list[int] = []
        self._regions: dict[int, _Region] = {}
        self._clocks: dict[int, Clock] = {}
        self._host: Clock = {}
        self._enqueued: set[tuple[Execution, Signature]] = set()

    def allocated(self, array: DeviceArray) -> None:
        """Memory may be used from now on."""
        self._regions[array.address] = _Region(array)
        self._starts = sorted(self._regions)

    def forget(self, array: DeviceArray) -> None:
        """Memory may not be used any more."""
        self._regions.pop(array.address, None)
        self._starts = sorted(self._regions)

    def clock_of(self, stream: int) -> Clock:
        """What is done once everything queued on a stream so far is done."""
        return dict(self._clocks.get(stream, {}))

    def wait(self, stream: int, clock: Clock) -> None:
        """Later work of a stream comes after ``clock``."""
        _merge(self._clocks.setdefault(stream, {}), clock)

    def host_waited(self, clock: Clock) -> None:
        """What the host does from now on comes after ``clock``."""
        _merge(self._host, clock)

    def issue(self, stream: int, call: Call) -> None:
        """A call is queued."""
        if not self._enabled:
            return
        clock = self._clocks.setdefault(stream, {})
        # What the host has waited for is done before anything that it queues from now on.
        _merge(clock, self._host)
        clock[stream] = clock.get(stream, 0) + 1
        for array, writes in call.operands:
            region = self._require(array, call.name)
            self._order(region, array, clock, writes=writes, who=call.name)
            last = region.parts.setdefault((array.address, array.end), ({}, {}))[writes]
            last[stream] = clock[stream]

    def run(self, call: Call) -> None:
        """A queued call runs."""
        if self._enabled:
            for array, _ in call.operands:
                self._require(array, call.name)

    def host_access(self, array: DeviceArray, *, writes: bool) -> None:
        """The host reads or writes memory itself."""
        if self._enabled:
            region = self._require(array, "the host")
            self._order(region, array, self._host, writes=writes, who="the host")

    def enqueued(self, call: Enqueue) -> None:
        """An engine has run plainly as it is bound."""
        self._enqueued.add(_bound(call.execution))

    def capture(self, call: Call) -> None:
        """A call is recorded."""
        if not self._enabled:
            return
        if isinstance(call, Enqueue) and _bound(call.execution) not in self._enqueued:
            raise DeviceFaultError(
                f"{call.name} was captured before it had run plainly at these shapes; run it once first"
            )
        for array, _ in call.operands:
            self._require(array, call.name)

    def replay(self, captured_as: Signature, calls: Program) -> None:
        """A graph of ``calls`` is replayed."""
        if not self._enabled:
            return
        for (name, was), (_, now) in zip(captured_as, signature(calls), strict=True):
            if was != now:
                raise DeviceFaultError(
                    f"a graph was replayed whose {name} was captured over other addresses or shapes; "
                    "capture it again"
                )

    def _require(self, array: DeviceArray, who: str) -> _Region:
        place = bisect_right(self._starts, array.address) - 1
        region = self._regions[self._starts[place]] if place >= 0 else None
        if region is None or array.end > region.end:
            raise DeviceFaultError(
                f"{who} uses {array.nbytes} bytes at {array.address:#x}, which are not allocated"
            )
        return region

    def _order(self, region: _Region, array: DeviceArray, clock: Clock, *, writes: bool, who: str) -> None:
        for (start, end), (reads, written) in region.parts.items():
            if start < array.end and array.address < end:
                _after(written, clock, who, "reads or writes", "writes")
                if writes:
                    _after(reads, clock, who, "writes", "reads")


def _after(accesses: Clock, clock: Clock, who: str, does: str, did: str) -> None:
    for stream, count in accesses.items():
        if clock.get(stream, 0) < count:
            raise DeviceFaultError(
                f"{who} {does} memory that work queued on stream {stream} {did}, without waiting for it; "
                "put an event between them, or synchronise first"
            )


def _merge(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


def _bound(execution: Execution) -> tuple[Execution, Signature]:
    return execution, signature((Enqueue(execution),))
