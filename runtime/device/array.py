"""DeviceArray: a stretch of device memory with a shape and a dtype. Describes memory, owns none."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vvs.errors import BackendError

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}


@dataclass(frozen=True)
class DeviceArray:
    """Contiguous memory at a fixed address.

    Raises:
        BackendError: a dtype that no kernel and no graph of ours has.

    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    """As numpy names it, or ``bfloat16``."""

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise BackendError(f"an array of dtype {self.dtype!r} cannot live on a device")

    @cached_property
    def nbytes(self) -> int:
        """Bytes it spans."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def end(self) -> int:
        """First address behind it."""
        return self.address + self.nbytes

    @property
    def raw(self) -> "DeviceArray":
        """Its bytes."""
        return DeviceArray(self.address, (self.nbytes,), "uint8")

    def part(self, index: int) -> "DeviceArray":
        """Entry ``index`` of the first axis, over the same memory."""
        first, *rest = self.shape
        if not 0 <= index < first:
            raise BackendError(f"an array of shape {self.shape} has no part {index}")
        stride = self.nbytes // first
        return DeviceArray(self.address + index * stride, tuple(rest), self.dtype)

    def leading(self, shape: Sequence[int]) -> "DeviceArray":
        """The first elements as an array of ``shape``, over the same memory."""
        view = replace(self, shape=tuple(shape))
        if view.nbytes > self.nbytes:
            raise BackendError(f"an array of shape {self.shape} does not hold one of shape {view.shape}")
        return view


def array_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of an array."""
    return DeviceArray(0, tuple(shape), dtype).nbytes


def host_dtype(array: DeviceArray) -> str:
    """What numpy, which lacks bfloat16, holds such elements as."""
    return "uint16" if array.dtype == "bfloat16" else array.dtype


def host_view(array: DeviceArray) -> NDArray[Any]:
    """Memory that the host can reach, as numpy sees it."""
    buffer: Any = (ctypes.c_byte * array.nbytes).from_address(array.address)
    view: NDArray[Any] = np.frombuffer(buffer, host_dtype(array)).reshape(array.shape)
    return view
