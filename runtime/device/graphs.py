"""ProgramRunner: programs on one stream, launched plainly or captured once as a graph and replayed.

Every known trap has its guard. A program runs plainly before it is captured, since TensorRT must have seen
its shapes. A graph must hold at least as many nodes as the program has calls: a capture on the wrong device
is empty without an error. Its first replay starts from the state that the plain run started from and must
leave the same state behind. Before every replay the addresses are compared with those that were captured.
Where a capture fails, the program is launched plainly from then on, and one warning says so.
"""

import logging
from collections.abc import Hashable
from dataclasses import dataclass

from vvs.errors import BackendError
from vvs.runtime.device.array import DeviceArray
from vvs.runtime.device.calls import Copy, Program, Signature, signature
from vvs.runtime.device.flow import Graph
from vvs.runtime.device.interface import Device, DeviceFaultError, Stream

Key = Hashable
_logger = logging.getLogger("vvs.device")


class _CaptureError(BackendError):
    """Why a program cannot be replayed."""


@dataclass(frozen=True)
class _Captured:
    graph: Graph
    signature: Signature


class ProgramRunner:
    """Runs programs. Belongs to one session.

    Args:
        device: what runs them.
        stream: where.
        state: what programs carry over from one to the next, all that a program both reads and writes.
        compared: the part of it that two runs of a program must agree on to the bit.
        backup: memory of the state's size, for capturing; None launches everything plainly.

    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        state: DeviceArray,
        compared: DeviceArray,
        backup: DeviceArray | None,
    ) -> None:
        self._device = device
        self._stream = stream
        self._state = state
        self._compared = compared
        self._backup = backup
        self._captured: dict[Key, _Captured] = {}
        self._warned = False
        self._plain: set[Key] = set()

    @property
    def graphs(self) -> int:
        """Graphs that are held."""
        return len(self._captured)

    def graph_of(self, key: Key, program: Program) -> Graph | None:
        """The graph of a program as it is bound now, if it is captured."""
        captured = self._captured.get(key)
        return captured.graph if captured is not None and captured.signature == signature(program) else None

    def run(self, key: Key, program: Program) -> None:
        """Queue a program. ``key`` names its kind and shape; the same key means the same program."""
        if self._backup is None or key in self._plain:
            self._launch(program)
            return
        graph = self.graph_of(key, program)
        if graph is not None:
            self._device.replay(self._stream, graph)
            return
        outdated = self._captured.pop(key, None)
        if outdated is not None:
            outdated.graph.close()
        self._introduce(key, program, self._backup)

    def close(self) -> None:
        """Give all graphs back."""
        captured, self._captured = self._captured, {}
        for each in captured.values():
            each.graph.close()

    def _launch(self, program: Program) -> None:
        for call in program:
            self._device.issue(self._stream, call)

    def _introduce(self, key: Key, program: Program, backup: DeviceArray) -> None:
        """Run a program for the first time: plainly, then again as a graph from the same state."""
        self._device.issue(self._stream, Copy(backup, self._state))
        self._launch(program)
        expected = self._device.download(self._stream, self._compared)
        graph = None
        try:
            graph = self._capture(program)
            self._device.issue(self._stream, Copy(self._state, backup))
            self._device.replay(self._stream, graph)
            if (self._device.download(self._stream, self._compared) != expected).any():
                raise _CaptureError("its first replay left other results behind than a plain launch")
        except DeviceFaultError:
            raise
        except BackendError as error:
            if graph is not None:
                graph.close()
            self._give_up(key, error)
            self._device.issue(self._stream, Copy(self._state, backup))
            self._launch(program)
            return
        self._captured[key] = _Captured(graph, signature(program))

    def _capture(self, program: Program) -> Graph:
        self._device.begin_capture(self._stream)
        try:
            self._launch(program)
            graph = self._device.end_capture(self._stream)
        except BaseException:
            self._device.abort_capture(self._stream)
            raise
        if graph.nodes < len(program):
            graph.close()
            raise _CaptureError(f"its graph has {graph.nodes} nodes, but {len(program)} calls were captured")
        return graph

    def _give_up(self, key: Key, error: BackendError) -> None:
        self._plain.add(key)
        if not self._warned:
            self._warned = True
            _logger.warning(
                "%s cannot replay %s as a CUDA graph (%s); such steps are launched plainly, which is slower "
                "but right",
                self._device.name,
                key,
                error,
            )
