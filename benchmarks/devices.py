"""Devices: memory bandwidth and matrix rate, from data sheets or measured on this machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from vvs.errors import SettingsError
from vvs.precision import PRECISIONS

GIGA, TERA = 1e9, 1e12


@dataclass(frozen=True)
class Device:
    """What bounds a step on a device."""

    name: str
    bandwidth: float
    """Bytes a second from main memory."""
    rates: Mapping[str, float]
    """Operations a second of matrix products, by precision."""
    source: str
    """Where the figures come from."""

    def rate(self, precision: str) -> float:
        """Operations a second in a precision; with int8 weights those of what it computes in.

        Raises:
            SettingsError: the device has no figure for it.

        """
        computed = PRECISIONS[precision].compute if precision in PRECISIONS else precision
        if computed not in self.rates:
            raise SettingsError(
                f"there is no matrix rate in {precision} for {self.name}, only in {', '.join(self.rates)}"
            )
        return self.rates[computed]


def _gpu(name: str, bandwidth: float, half: float, single: float) -> Device:
    """Bandwidth in GB/s, dense rates in TFLOP/s: fp16 and bf16 on tensor cores, fp32 outside them."""
    rates = {"fp16": half * TERA, "bf16": half * TERA, "fp32": single * TERA}
    return Device(name, bandwidth * GIGA, rates, "NVIDIA data sheet")


DATA_SHEETS = {
    "h200": _gpu("H200 SXM", 4800, 989.5, 67),
    "a100": _gpu("A100 SXM 80 GB", 2039, 312, 19.5),
    "l40s": _gpu("L40S", 864, 362, 91.6),
    "rtx4090": _gpu("GeForce RTX 4090", 1008, 165.2, 82.6),
}
"""Without sparsity, tensor cores accumulating in fp32."""


def data_sheet(name: str) -> Device:
    """A device by its short name; SettingsError lists those there are."""
    if name not in DATA_SHEETS:
        raise SettingsError(f"unknown device {name!r}; there is {', '.join(DATA_SHEETS)}")
    return DATA_SHEETS[name]


READ_BYTES = 1 << 29
"""Well beyond the caches of most machines. A shared cache of hundreds of megabytes still helps."""
MATRIX = 2048
REPEATS = 5


def probe(name: str) -> Device:
    """Measure this machine: reading memory, and fp32 matrix products in numpy, on every core it may use."""
    block = np.ones(READ_BYTES // 4, np.float32)
    left, right = (np.ones((MATRIX, MATRIX), np.float32) for _ in range(2))
    bandwidth = block.nbytes / _fastest(lambda: block.max())
    rate = 2 * MATRIX**3 / _fastest(lambda: left @ right)
    return Device(name, bandwidth, {"fp32": rate}, "measured on this machine")


def _fastest(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few repeats, after one that is not counted."""
    work()
    seconds = []
    for _ in range(REPEATS):
        start = perf_counter()
        work()
        seconds.append(perf_counter() - start)
    return min(seconds)
