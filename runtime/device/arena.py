"""Arena: all memory of one run in one allocation, planned by name before anything is allocated."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vvs.errors import BackendError
from vvs.runtime.device.array import DeviceArray, array_bytes
from vvs.runtime.device.interface import Device

ALIGNMENT = 256
MEGA = 1e6


@dataclass(frozen=True)
class Entry:
    """One array of a plan."""

    part: str
    """What it belongs to, such as ``target KV cache``; the plan is shown by part."""
    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass
class ArenaPlan:
    """Arrays laid out one behind the other, each at a multiple of 256 bytes."""

    entries: dict[str, Entry] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, part: str, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """Lay out another array."""
        if name in self.entries:
            raise ValueError(f"the arena has an array {name!r} already")
        self.entries[name] = Entry(part, self.nbytes, shape, dtype)
        self.nbytes += -(-max(1, array_bytes(shape, dtype)) // ALIGNMENT) * ALIGNMENT

    @property
    def parts(self) -> Mapping[str, int]:
        """Bytes by part, the largest first."""
        totals: dict[str, int] = {}
        for entry in self.entries.values():
            totals[entry.part] = totals.get(entry.part, 0) + array_bytes(entry.shape, entry.dtype)
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def describe(self) -> str:
        """The plan in one line, such as ``21.3 MB: 16.0 target KV cache, ...``."""
        parts = ", ".join(f"{nbytes / MEGA:,.1f} {part}" for part, nbytes in self.parts.items())
        return f"{self.nbytes / MEGA:,.1f} MB: {parts}"


class Arena:
    """The memory of a plan.

    Raises:
        BackendError: the device has not that much left, with both numbers and what would help.

    """

    def __init__(self, device: Device, plan: ArenaPlan, advice: str) -> None:
        free = device.free_bytes()
        if plan.nbytes > free:
            raise BackendError(
                f"{device.name} has {free / MEGA:,.1f} MB free, but this run needs {plan.describe()}; "
                f"{advice}"
            )
        self._device = device
        self._memory: DeviceArray | None = device.allocate(plan.nbytes)
        start = self._memory.address
        self.arrays: Mapping[str, DeviceArray] = {
            name: DeviceArray(start + entry.offset, entry.shape, entry.dtype)
            for name, entry in plan.entries.items()
        }

    def __getitem__(self, name: str) -> DeviceArray:
        return self.arrays[name]

    def close(self) -> None:
        """Give the memory back; the first call counts."""
        memory, self._memory = self._memory, None
        if memory is not None:
            self._device.free(memory)
