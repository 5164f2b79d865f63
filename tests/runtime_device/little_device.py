"""Small kernels of the tests' own, and devices that run them."""

from __future__ import annotations

import numpy as np

from vvs.runtime.device.array import DeviceArray, host_view
from vvs.runtime.device.calls import Kernel, Launch, Operand, Parameter, bound_operands
from vvs.runtime.device.host import HostDevice

N = 8
ADD = Kernel(
    "add",
    (
        Parameter("values", "int32", pointer=True, writes=True),
        Parameter("more", "int32", pointer=True),
        Parameter("n", "int32", pointer=False),
    ),
)


class LittleKernels:
    """``add``: values += more."""

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: tuple[int | float, ...],
    ) -> None:
        values, more, n = (int(argument) for argument in arguments)
        host_view(DeviceArray(values, (n,), "int32"))[...] += host_view(DeviceArray(more, (n,), "int32"))


class Doubler:
    """An engine: output = 2 * input."""

    name = "doubler"

    def __init__(self, source: DeviceArray, target: DeviceArray) -> None:
        self.bind(source, target)

    def bind(self, source: DeviceArray, target: DeviceArray) -> None:
        self._arrays = source, target
        self.operands: tuple[Operand, ...] = bound_operands({"in": source}, {"out": target})

    def run(self) -> None:
        source, target = self._arrays
        host_view(target)[...] = 2 * host_view(source)


def ints(device: HostDevice, *values: int) -> DeviceArray:
    """Memory with these numbers in it, repeated up to N."""
    array = DeviceArray(device.allocate(4 * N).address, (N,), "int32")
    device.upload(device.stream(), array, np.resize(np.array(values, np.int32), N))
    return array


def add(values: DeviceArray, more: DeviceArray) -> Launch:
    return Launch(ADD, (values, more, N))
