"""Memory: the most a stretch of work held resident, where the system tells."""

from pathlib import Path

CLEAR_PEAK = "5"
"""What the kernel takes for: forget the peak so far (proc(5), clear_refs)."""


def forget_peak() -> bool:
    """Start a new peak; False where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)
    except OSError:
        return False
    return True


def peak_bytes() -> int | None:
    """Bytes resident at the peak since :func:`forget_peak`; None where the system does not tell."""
    return _status().get("VmHWM")


def own_bytes() -> int | None:
    """Bytes that the process holds in memory of its own; None where the system does not tell."""
    return _status().get("RssAnon")


def mapped_bytes() -> int | None:
    """Bytes resident of files that the process has mapped, which the system may drop and read again."""
    return _status().get("RssFile")


def _status() -> dict[str, int]:
    """Sizes in bytes that the kernel reports of this process, by name (proc(5), status)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    words = (line.replace(":", " ").split() for line in lines if line.endswith(" kB"))
    return {name: 1024 * int(size) for name, size, _ in words}
