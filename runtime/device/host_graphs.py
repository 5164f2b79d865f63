"""HostGraph and HostFlow: what the host device captured, and flows of it, run by reading what kernels set."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from vvs.runtime.device.calls import Call, Condition, Launch, Program, signature
from vvs.runtime.device.flow import Embed, Flow, If, Part, Switch, While, conditions_of, parts_of
from vvs.runtime.device.interface import DeviceFaultError

Work = Callable[[], None]
UNSET = 0xFFFFFFFF
"""What a condition holds until a kernel sets it, and again once a node has read it."""


class HostGraph:
    """Captured calls."""

    def __init__(self, calls: Program) -> None:
        self.calls = calls
        self.captured_as = signature(calls)

    @property
    def nodes(self) -> int:
        """Calls; an engine counts one here."""
        return len(self.calls)

    def close(self) -> None:
        """Forget the calls."""
        self.calls = ()


class HostFlow:
    """A flow, ready to run.

    Args:
        flow: of graphs that the host device captured.

    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._conditions = {condition: ctypes.c_uint32(UNSET) for condition in conditions_of(flow)}
        embedded = [part for part in parts_of(flow) if isinstance(part, Embed)]
        self._captured = {part: _snapshot(part) for part in embedded}

    @property
    def nodes(self) -> int:
        """Parts, those in bodies included."""
        return sum(1 for _ in parts_of(self._flow))

    @property
    def captured(self) -> Sequence[HostGraph]:
        """The captured graphs it holds."""
        return tuple(self._captured.values())

    def close(self) -> None:
        """Forget everything."""
        self._flow, self._captured = (), {}

    def prepared(self, work: Callable[[Call], Work]) -> Work:
        """Turn it into one piece of work; ``work`` turns a call into one."""
        run = self._sequence(self._flow, work)

        def start() -> None:
            for slot in self._conditions.values():
                slot.value = UNSET
            run()

        return start

    def _sequence(self, flow: Flow, work: Callable[[Call], Work]) -> Work:
        return _in_order([self._piece(part, work) for part in flow])

    def _piece(self, part: Part, work: Callable[[Call], Work]) -> Work:
        match part:
            case Launch():
                return work(_with_handles(part, self._conditions))
            case Embed():
                return _in_order([work(call) for call in self._captured[part].calls])
            case _:
                return self._decided(part, [self._sequence(body, work) for body in part.bodies])

    def _decided(self, part: If | While | Switch, bodies: Sequence[Work]) -> Work:
        """Run of a node's bodies what its condition says."""

        def run() -> None:
            value = self._read(part.condition)
            match part:
                case While():
                    while value:
                        bodies[0]()
                        value = self._read(part.condition)
                case If() if value:
                    bodies[0]()
                case Switch() if value < len(bodies):
                    bodies[value]()

        return run

    def _read(self, condition: Condition) -> int:
        """What a kernel has set since a node read it last: a GPU would go on with the old value unseen."""
        slot = self._conditions[condition]
        value, slot.value = slot.value, UNSET
        if value == UNSET:
            raise DeviceFaultError(
                "a loop or a branch was reached whose condition no kernel has set since it was read last"
            )
        return value


def _in_order(pieces: Sequence[Work]) -> Work:
    def run() -> None:
        for piece in pieces:
            piece()

    return run


def _snapshot(part: Embed) -> HostGraph:
    if not isinstance(part.graph, HostGraph):
        raise TypeError(f"{part.graph!r} is no graph that the host device captured")
    return HostGraph(part.graph.calls)


def _with_handles(launch: Launch, conditions: Mapping[Condition, ctypes.c_uint32]) -> Launch:
    """A launch that is given the addresses of its conditions."""
    arguments = tuple(
        ctypes.addressof(conditions[argument]) if isinstance(argument, Condition) else argument
        for argument in launch.arguments
    )
    return replace(launch, arguments=arguments)
