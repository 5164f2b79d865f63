"""Every kernel through the device interface: on the host stand-in, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from prepared_batch import assert_same, recorded_launch

from vvs.errors import BackendError
from vvs.runtime.device.array import DeviceArray
from vvs.runtime.device.calls import CONDITION, Kernel, Launch
from vvs.runtime.device.cuda import CudaDevice, checked_gpu, load_packages
from vvs.runtime.device.host import HostDevice
from vvs.runtime.device.interface import Device
from vvs.runtime.kernels.host import HostKernels
from vvs.runtime.kernels.nvrtc import compile_cubin
from vvs.runtime.kernels.table import KERNELS

ALONE = [kernel for kernel in KERNELS if not any(each.dtype == CONDITION for each in kernel.parameters)]
"""Kernels that can be launched by themselves; those that set conditions want a flow (`test_flow.py`)."""


@pytest.fixture(scope="module")
def gpu() -> Iterator[CudaDevice]:
    try:
        load_packages()
        arch = checked_gpu().arch
    except BackendError as error:
        pytest.skip(str(error))
    device = CudaDevice(compile_cubin(arch).modules)
    yield device
    device.close()


def run(device: Device, kernel: Kernel, threads: int) -> dict[str, np.ndarray]:
    """Launch a kernel on a device over copies of the prepared batch; what it wrote."""
    recorded = recorded_launch(kernel, threads)
    stream = device.stream()
    memory: list[DeviceArray] = []
    arguments: list[DeviceArray | int | float] = []
    for argument in recorded.arguments:
        if isinstance(argument, np.ndarray):
            memory.append(device.allocate(max(1, argument.nbytes)))
            array = DeviceArray(memory[-1].address, argument.shape, str(argument.dtype))
            device.upload(stream, array, argument)
            arguments.append(array)
        else:
            arguments.append(argument)
    device.issue(stream, Launch(kernel, tuple(arguments), recorded.grid, threads))
    device.synchronise(stream)
    written = {
        parameter.name: device.download(stream, argument)
        for parameter, argument in zip(kernel.parameters, arguments, strict=True)
        if parameter.writes and isinstance(argument, DeviceArray)
    }
    for array in memory:
        device.free(array)
    return written


@pytest.mark.parametrize("kernel", ALONE, ids=lambda kernel: kernel.name)
def test_the_host_stand_in(kernel: Kernel) -> None:
    assert_same(kernel, run(HostDevice(HostKernels(), check=True), kernel, 1), rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [1, 32, 100, 256, 512])
@pytest.mark.parametrize("kernel", ALONE, ids=lambda kernel: kernel.name)
def test_a_gpu(gpu: CudaDevice, kernel: Kernel, threads: int) -> None:
    assert_same(kernel, run(gpu, kernel, threads), rtol=1e-9)
