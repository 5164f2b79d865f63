"""Graphs of whole programs: captured once, replayed, and every known trap guarded."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from little_device import Doubler, LittleKernels, add, ints

from vvs.errors import BackendError
from vvs.runtime.device.arena import Arena, ArenaPlan
from vvs.runtime.device.calls import Call, Enqueue
from vvs.runtime.device.flow import Graph
from vvs.runtime.device.graphs import ProgramRunner
from vvs.runtime.device.host import HostDevice, HostStream
from vvs.runtime.device.host_graphs import HostGraph
from vvs.runtime.device.interface import Stream


class Fixture:
    """A state of one counter, counted up by a program of an engine and a kernel."""

    def __init__(self, device: HostDevice, *, graphs: bool = True) -> None:
        self.device = device
        self.stream = device.stream()
        self.counter, self.step = ints(device, 0), ints(device, 0)
        self.engine = Doubler(ints(device, 1), self.step)
        backup = ints(device, 0) if graphs else None
        self.runner = ProgramRunner(device, self.stream, self.counter, self.counter, backup)
        self.program: tuple[Call, ...] = (Enqueue(self.engine), add(self.counter, self.step))

    def run(self, times: int = 1) -> int:
        for _ in range(times):
            self.runner.run("count", self.program)
        return int(self.device.download(self.stream, self.counter)[0])


class Log(list[str]):
    """Names of the calls of a device."""

    def count_of(self, name: str) -> int:
        return sum(call.startswith(name) for call in self)


def test_a_program_is_captured_once_and_replayed() -> None:
    log = Log()
    counting = Fixture(HostDevice(LittleKernels(), check=True, hook=log.append))
    assert counting.run() == 2  # though it ran twice, plainly and as a graph
    assert counting.run(3) == 8
    assert log.count_of("begin_capture") == 1
    assert log.count_of("replay") == 4
    assert counting.runner.graphs == 1
    counting.runner.close()
    assert counting.runner.graphs == 0


def test_without_graphs_every_call_is_issued() -> None:
    log = Log()
    counting = Fixture(HostDevice(LittleKernels(), check=True, hook=log.append), graphs=False)
    assert counting.run(4) == 8
    assert log.count_of("begin_capture") == log.count_of("replay") == 0
    assert log.count_of("issue") == 8


def test_other_addresses_are_captured_again() -> None:
    log = Log()
    device = HostDevice(LittleKernels(), check=True, hook=log.append)
    counting = Fixture(device)
    counting.run(2)
    counting.engine.bind(ints(device, 5), counting.step)
    assert counting.run(2) == 4 + 20
    assert log.count_of("begin_capture") == 2


class EmptyCapture(HostDevice):
    """A capture on the wrong device: nothing is in it, and nobody says so."""

    def end_capture(self, stream: Stream) -> Graph:
        super().end_capture(stream)
        return HostGraph(())


class RefusedCapture(HostDevice):
    """A capture that fails, as where an engine allocates."""

    def end_capture(self, stream: Stream) -> Graph:
        raise BackendError("operation not permitted when stream is capturing")


class OtherResults(HostDevice):
    """A graph that does something else than the launches it was captured from."""

    def end_capture(self, stream: Stream) -> Graph:
        calls = super().end_capture(stream).calls  # type: ignore[attr-defined]
        return HostGraph((*calls, calls[-1]))


class RefusedReplay(HostDevice):
    """A graph that cannot be launched."""

    def replay(self, stream: Stream, graph: Graph) -> None:
        raise BackendError("invalid graph")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (EmptyCapture, "its graph has 0 nodes, but 2 calls were captured"),
        (RefusedCapture, "not permitted when stream is capturing"),
        (OtherResults, "left other results behind"),
        (RefusedReplay, "invalid graph"),
    ],
)
def test_what_cannot_be_captured_is_launched_plainly_with_one_warning(
    broken: type[HostDevice], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    counting = Fixture(broken(LittleKernels(), check=True))
    with caplog.at_level(logging.WARNING, logger="vvs.device"):
        assert counting.run() == 2
        assert counting.run(3) == 8
        counting.runner.run("count differently", counting.program)
    assert int(counting.device.download(counting.stream, counting.counter)[0]) == 10
    assert len(caplog.records) == 1
    assert reason in caplog.text
    assert isinstance(counting.stream, HostStream)
    assert counting.stream.captured is None


def test_a_plan_is_told_before_it_is_allocated() -> None:
    plan = ArenaPlan()
    plan.add("caches", "keys", (2, 1000, 1000), "float16")
    plan.add("caches", "values", (2, 1000, 1000), "float16")
    plan.add("state", "count", (3,), "int64")
    assert plan.describe() == "8.0 MB: 8.0 caches, 0.0 state"
    assert plan.nbytes % 256 == 0
    with pytest.raises(ValueError, match="'count' already"):
        plan.add("state", "count", (3,), "int64")
    device = HostDevice(LittleKernels(), memory=9_000_000)
    arena = Arena(device, plan, "give fewer requests")
    assert arena["count"].shape == (3,)
    assert arena["values"].address >= arena["keys"].end
    np.testing.assert_array_equal(device.download(device.stream(), arena["count"]), np.zeros(3))
    with pytest.raises(
        BackendError, match=r"has 1\.0 MB free, but this run needs 8\.0 MB: .*; give fewer requests"
    ):
        Arena(device, plan, "give fewer requests")
    arena.close()
    arena.close()
    Arena(device, plan, "give fewer requests").close()
