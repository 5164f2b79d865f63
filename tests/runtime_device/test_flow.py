"""Flows on the stand-in: loops and branches that kernels decide, and faults that its checks find in them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from little_device import Doubler, LittleKernels, N, add, ints

from vvs.runtime.device.calls import CONDITION, Call, Condition, Enqueue, Kernel, Launch, Parameter
from vvs.runtime.device.flow import Embed, Flow, Graph, If, Switch, While, conditions_of, parts_of
from vvs.runtime.device.flow_trial import try_flow
from vvs.runtime.device.host import HostDevice
from vvs.runtime.device.interface import DeviceFaultError
from vvs.runtime.kernels.host import HostKernels

LESS = Kernel(
    "less",
    (
        Parameter("values", "int32", pointer=True),
        Parameter("bound", "int32", pointer=False),
        Parameter("condition", CONDITION, pointer=False, writes=True),
    ),
)
FIRST = Kernel("first", (LESS.parameters[0], LESS.parameters[2]))


class FlowKernels(LittleKernels):
    """``add``; ``less``: condition = values[0] < bound; ``first``: condition = values[0]."""

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: tuple[int | float, ...],
    ) -> None:
        if kernel not in (LESS, FIRST):
            super().launch(kernel, grid, block, shared_bytes, arguments)
            return
        values, *bound, condition = (int(argument) for argument in arguments)
        first = ctypes.c_int32.from_address(values).value
        ctypes.c_uint32.from_address(condition).value = first < bound[0] if bound else first


class Fixture:
    """A checking device with a counter, a one, and what was captured."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.device = HostDevice(FlowKernels(), check=True, hook=self.calls.append)
        self.stream = self.device.stream()
        self.count, self.one = ints(self.device, 0), ints(self.device, 1)

    def captured(self, *calls: Call) -> Graph:
        self.device.begin_capture(self.stream)
        for call in calls:
            self.device.issue(self.stream, call)
        return self.device.end_capture(self.stream)

    def less(self, bound: int, condition: Condition) -> Launch:
        return Launch(LESS, (self.count, bound, condition))

    def run(self, flow: Flow, times: int = 1) -> int:
        graph = self.device.assemble(flow)
        for _ in range(times):
            self.device.replay(self.stream, graph)
        return int(self.device.download(self.stream, self.count)[0])


@pytest.fixture
def little() -> Fixture:
    return Fixture()


def test_a_loop_runs_until_its_condition_is_0(little: Fixture) -> None:
    running = Condition()
    step, test = Embed(little.captured(add(little.count, little.one))), little.less(5, running)
    flow = (test, While(running, (step, test)))
    assert little.run(flow) == 5
    assert little.run(flow, times=2) == 5
    assert little.calls.count("run add") == 5
    assert little.device.assemble(flow).nodes == 4


@pytest.mark.parametrize(("value", "expected"), [(0, 1), (1, 101), (2, 2), (3, 3)])
def test_a_switch_runs_the_body_of_its_number(little: Fixture, value: int, expected: int) -> None:
    chosen, hundred = Condition(), ints(little.device, 100)
    bodies = tuple((Embed(little.captured(add(little.count, each))),) for each in (little.one, hundred))
    little.device.upload(little.stream, little.count, np.full(N, value, np.int32))
    assert little.run((Launch(FIRST, (little.count, chosen)), Switch(chosen, bodies))) == expected


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (1, 2), (7, 8)])
def test_a_branch_is_taken_unless_its_condition_is_0(little: Fixture, value: int, expected: int) -> None:
    taken = Condition()
    little.device.upload(little.stream, little.count, np.full(N, value, np.int32))
    body = (Embed(little.captured(add(little.count, little.one))),)
    assert little.run((Launch(FIRST, (little.count, taken)), If(taken, body))) == expected


def test_a_body_that_does_not_set_its_condition_again_is_a_fault(little: Fixture) -> None:
    running = Condition()
    flow = (little.less(5, running), While(running, (Embed(little.captured(add(little.count, little.one))),)))
    with pytest.raises(DeviceFaultError, match="whose condition no kernel has set since it was read last"):
        little.run(flow)


def test_memory_of_a_flow_is_checked_when_queued_and_when_run(little: Fixture) -> None:
    running, gone = Condition(), ints(little.device, 1)
    step, test = Embed(little.captured(add(little.count, gone))), little.less(5, running)
    graph = little.device.assemble((test, While(running, (step, test))))
    little.device.replay(little.stream, graph)
    little.device.free(gone)
    with pytest.raises(DeviceFaultError, match="not allocated"):
        little.device.synchronise(little.stream)
    with pytest.raises(DeviceFaultError, match="not allocated"):
        little.device.replay(little.stream, graph)


def test_a_flow_is_a_fault_once_an_engine_is_bound_anew(little: Fixture) -> None:
    doubler = Doubler(little.one, little.count)
    little.device.issue(little.stream, Enqueue(doubler))
    little.device.synchronise(little.stream)
    graph = little.device.assemble((Embed(little.captured(Enqueue(doubler))),))
    little.device.replay(little.stream, graph)
    little.device.synchronise(little.stream)
    doubler.bind(ints(little.device, 4), little.count)
    with pytest.raises(DeviceFaultError, match="whose doubler was captured over other addresses"):
        little.device.replay(little.stream, graph)


def test_another_stream_may_not_touch_what_a_flow_writes(little: Fixture) -> None:
    flow = (Embed(little.captured(add(little.count, little.one))),)
    little.device.replay(little.stream, little.device.assemble(flow))
    with pytest.raises(DeviceFaultError, match="without waiting for it"):
        little.device.issue(little.device.stream(), add(little.count, little.one))


def test_what_a_flow_holds_may_be_closed(little: Fixture) -> None:
    captured = little.captured(add(little.count, little.one))
    graph = little.device.assemble((Embed(captured),))
    captured.close()
    little.device.replay(little.stream, graph)
    assert int(little.device.download(little.stream, little.count)[0]) == 1
    with pytest.raises(TypeError, match="no graph that the host device captured"):
        little.device.assemble((Embed(graph),))
    graph.close()
    assert graph.nodes == 0


def test_conditions_are_read_once_and_set_by_a_kernel(little: Fixture) -> None:
    a, b = Condition(), Condition()
    set_a = little.less(1, a)
    nested = (set_a, While(a, (set_a, little.less(2, b), If(b, ()))))
    assert conditions_of(nested) == (a, b)
    assert [type(part) for part in parts_of(nested)] == [Launch, While, Launch, Launch, If]
    with pytest.raises(TypeError, match="read the same condition"):
        conditions_of((set_a, If(a, ()), If(a, ())))
    for wrong in ((If(a, ()),), (set_a,)):
        with pytest.raises(TypeError, match="no kernel sets, or that no node reads"):
            conditions_of(wrong)


def test_a_condition_is_set_in_a_flow_only(little: Fixture) -> None:
    little.device.issue(little.stream, little.less(1, Condition()))
    with pytest.raises(DeviceFaultError, match="launched outside of a flow"):
        little.device.synchronise(little.stream)
    with pytest.raises(TypeError, match="add takes int32 for 'n'"):
        Launch(add(little.count, little.one).kernel, (little.count, little.one, Condition()))


def test_the_trial_of_a_gpu_runs_on_the_stand_in() -> None:
    device = HostDevice(HostKernels(), check=True)
    try_flow(device)
    assert not device._held
