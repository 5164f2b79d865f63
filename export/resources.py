"""Resources: whether disk and memory suffice, said before work starts. Needs no PyTorch."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from vvs.errors import ExportError

MEMORY_INFO = Path("/proc/meminfo")
UNITS: Sequence[str] = ("bytes", "kB", "MB", "GB")


def require_disk(what: str, needed: int, place: Path) -> None:
    """Raise ExportError unless the ``needed`` bytes of ``what`` are free where ``place`` lies or will lie."""
    existing = next(parent for parent in (place, *place.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise ExportError(
            f"{what} will take about {in_bytes(needed)}, but only {in_bytes(free)} are free at {existing}; "
            "free some, or choose another place"
        )


def available_memory() -> float:
    """Bytes that processes can still get, swap included; infinite where the system does not tell."""
    try:
        lines = MEMORY_INFO.read_text().splitlines()
    except OSError:
        return math.inf
    sizes = {name: int(rest.split()[0]) * 1024 for name, rest in (line.split(":", 1) for line in lines)}
    return sizes.get("MemAvailable", math.inf) + sizes.get("SwapFree", 0)


def require_memory(needed: int) -> None:
    """Raise ExportError unless about ``needed`` bytes of memory are available for an export."""
    available = available_memory()
    if available < needed:
        raise ExportError(
            f"exporting takes about {in_bytes(needed)} of memory, "
            f"but only {in_bytes(int(available))} are available; --ignore-memory tries it all the same"
        )


def in_bytes(count: int) -> str:
    """A number of bytes for people to read, such as ``1.55 GB``."""
    power = min(len(str(count)) - 1, 3 * (len(UNITS) - 1)) // 3 if count else 0
    return f"{count} bytes" if power == 0 else f"{count / 1000**power:.3g} {UNITS[power]}"
