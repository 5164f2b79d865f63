"""CPUs: how many of them this process may use."""

import os


def usable_cpus() -> int:
    """CPUs this process may run on, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
