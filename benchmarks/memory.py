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
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    peaks = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return 1024 * int(peaks[0]) if peaks else None
