"""The stand-in queues work as a GPU does, and its checking mode finds every kind of fault."""

from __future__ import annotations

import numpy as np
import pytest
from little_device import Doubler, LittleKernels, N, add, ints

from vvs.errors import BackendError
from vvs.runtime.device.array import DeviceArray, host_view
from vvs.runtime.device.calls import Copy, Enqueue, Fill, Launch
from vvs.runtime.device.host import HostDevice
from vvs.runtime.device.interface import DeviceFaultError


@pytest.fixture
def device() -> HostDevice:
    return HostDevice(LittleKernels(), check=True)


def test_work_waits_until_something_is_synchronised(device: HostDevice) -> None:
    stream, event = device.stream(), device.event()
    total, one, pinned = ints(device, 1), ints(device, 1), device.pinned((N,), "int32")
    device.issue(stream, add(total, one))
    device.issue(stream, add(total, total))
    device.issue(stream, Copy(pinned.array, total))
    device.record(event, stream)
    device.issue(stream, Fill(total))
    np.testing.assert_array_equal(host_view(total), np.ones(N))  # nothing has run yet
    device.synchronise(event)
    np.testing.assert_array_equal(pinned.read(), np.full(N, 4))
    assert device.download(stream, total).sum() == 0


def test_an_engine_and_events_between_streams(device: HostDevice) -> None:
    first, second, event = device.stream(), device.stream(), device.event()
    a, b = ints(device, 3), ints(device, 0)
    device.issue(first, Enqueue(Doubler(a, b)))
    device.record(event, first)
    device.wait(second, event)
    device.issue(second, add(a, b))
    device.synchronise(second)
    np.testing.assert_array_equal(device.download(second, a), np.full(N, 9))


def test_a_captured_graph_repeats_its_calls(device: HostDevice) -> None:
    stream, total, one = device.stream(), ints(device, 0), ints(device, 1)
    device.begin_capture(stream)
    device.issue(stream, add(total, one))
    device.issue(stream, add(total, total))
    graph = device.end_capture(stream)
    assert graph.nodes == 2
    assert device.download(stream, total).sum() == 0  # captured work does not run
    for _ in range(3):
        device.replay(stream, graph)
    np.testing.assert_array_equal(device.download(stream, total), np.full(N, 14))


def test_memory_is_bounded_and_given_back() -> None:
    device = HostDevice(LittleKernels(), memory=100)
    memory = device.allocate(60)
    assert device.free_bytes() == 40
    with pytest.raises(BackendError, match="has 40 bytes free, but 60 were asked for"):
        device.allocate(60)
    device.free(memory)
    assert device.free_bytes() == 100
    with pytest.raises(BackendError, match="that is not allocated"):
        device.free(memory)


def test_freed_memory_is_a_fault_when_queued_and_when_run(device: HostDevice) -> None:
    stream, total, one = device.stream(), ints(device, 0), ints(device, 1)
    device.issue(stream, add(total, one))
    device.free(one)
    with pytest.raises(DeviceFaultError, match=r"add uses 32 bytes at 0x.* not allocated"):
        device.synchronise(stream)
    with pytest.raises(DeviceFaultError, match="not allocated"):
        device.issue(stream, add(total, one))
    with pytest.raises(DeviceFaultError, match="the host uses"):
        device.download(stream, one)


def test_memory_past_an_allocation_is_a_fault(device: HostDevice) -> None:
    stream, total = device.stream(), ints(device, 0)
    behind = DeviceArray(total.address + 16, (N,), "int32")
    with pytest.raises(DeviceFaultError, match="not allocated"):
        device.issue(stream, add(total, behind))


def test_a_fault_leaves_nothing_queued(device: HostDevice) -> None:
    stream, total, one = device.stream(), ints(device, 0), ints(device, 1)
    gone = ints(device, 1)
    device.issue(stream, add(total, gone))
    device.issue(stream, add(total, one))
    device.free(gone)
    with pytest.raises(DeviceFaultError):
        device.synchronise(stream)
    device.synchronise(stream)
    np.testing.assert_array_equal(device.download(stream, total), np.zeros(N))


@pytest.mark.parametrize(("first_writes", "second_writes"), [(True, False), (False, True), (True, True)])
def test_two_streams_without_an_event_are_a_fault(
    device: HostDevice, first_writes: bool, second_writes: bool
) -> None:
    shared, mine, yours = ints(device, 1), ints(device, 1), ints(device, 1)
    first, second = device.stream(), device.stream()
    device.issue(first, add(shared, mine) if first_writes else add(mine, shared))
    call = add(shared, yours) if second_writes else add(yours, shared)
    with pytest.raises(DeviceFaultError, match=r"queued on stream \d+ .*, without waiting for it"):
        device.issue(second, call)


def test_two_streams_may_read_the_same_memory(device: HostDevice) -> None:
    shared, mine, yours = ints(device, 1), ints(device, 1), ints(device, 1)
    first, second = device.stream(), device.stream()
    device.issue(first, add(mine, shared))
    device.issue(second, add(yours, shared))
    device.synchronise(first)
    device.synchronise(second)


def test_an_event_recorded_too_early_orders_nothing(device: HostDevice) -> None:
    first, second, event = device.stream(), device.stream(), device.event()
    shared, one = ints(device, 1), ints(device, 1)
    device.record(event, first)
    device.issue(first, add(shared, one))
    device.wait(second, event)
    with pytest.raises(DeviceFaultError, match="without waiting"):
        device.issue(second, add(shared, one))
    device.synchronise(first)  # once the host has waited, whatever it queues comes after
    device.issue(second, add(shared, one))
    device.synchronise(second)


def test_the_host_must_wait_before_it_reads_or_writes(device: HostDevice) -> None:
    stream, total, pinned = device.stream(), ints(device, 5), device.pinned((N,), "int32")
    device.issue(stream, Copy(pinned.array, total))
    with pytest.raises(
        DeviceFaultError, match=r"the host reads or writes memory that work queued on stream \d+"
    ):
        pinned.read()
    device.synchronise(stream)
    assert pinned.read()[0] == 5
    device.issue(stream, Copy(total, pinned.array))
    with pytest.raises(DeviceFaultError, match="the host writes memory"):
        pinned.write(np.zeros(N, np.int32))
    device.synchronise(stream)
    pinned.write(np.zeros(N, np.int32))


def test_without_checks_the_host_reads_what_was_there_before() -> None:
    device = HostDevice(LittleKernels())
    stream, total, pinned = device.stream(), ints(device, 5), device.pinned((N,), "int32")
    device.issue(stream, Copy(pinned.array, total))
    assert pinned.read()[0] == 0


def test_an_engine_must_have_run_plainly_before_it_is_captured(device: HostDevice) -> None:
    stream = device.stream()
    doubler = Doubler(ints(device, 3), ints(device, 0))
    device.begin_capture(stream)
    with pytest.raises(DeviceFaultError, match="doubler was captured before it had run plainly"):
        device.issue(stream, Enqueue(doubler))
    device.abort_capture(stream)
    device.issue(stream, Enqueue(doubler))
    device.synchronise(stream)
    device.begin_capture(stream)
    device.issue(stream, Enqueue(doubler))
    graph = device.end_capture(stream)
    device.replay(stream, graph)
    doubler.bind(ints(device, 4), ints(device, 0))
    with pytest.raises(DeviceFaultError, match="whose doubler was captured over other addresses or shapes"):
        device.replay(stream, graph)


def test_captures_do_not_nest(device: HostDevice) -> None:
    stream = device.stream()
    with pytest.raises(BackendError, match="not being captured"):
        device.end_capture(stream)
    device.begin_capture(stream)
    with pytest.raises(BackendError, match="that is being captured"):
        device.begin_capture(stream)


def test_calls_check_what_they_are_given(device: HostDevice) -> None:
    total, one = ints(device, 0), ints(device, 1)
    kernel = add(total, one).kernel
    with pytest.raises(TypeError, match="add takes 3 arguments, got 2"):
        Launch(kernel, (total, one))
    with pytest.raises(TypeError, match="add takes int32 for 'more'"):
        Launch(kernel, (total, 3, N))
    with pytest.raises(TypeError, match="add takes int32 for 'values'"):
        Launch(kernel, (DeviceArray(total.address, (4,), "int64"), one, N))
    with pytest.raises(TypeError, match="differ in size"):
        Copy(total, DeviceArray(one.address, (2,), "int32"))


def test_arrays_describe_memory() -> None:
    array = DeviceArray(1024, (3, 4), "float16")
    assert array.nbytes == 24
    assert array.part(2) == DeviceArray(1040, (4,), "float16")
    assert array.leading((2, 3)) == DeviceArray(1024, (2, 3), "float16")
    with pytest.raises(BackendError, match="has no part 3"):
        array.part(3)
    with pytest.raises(BackendError, match="does not hold one of shape"):
        array.leading((5, 5))
    with pytest.raises(BackendError, match="'complex64' cannot live on a device"):
        DeviceArray(0, (1,), "complex64")
