"""Child: a command in a process of its own, with the time and the memory that it took."""

import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from vvs.errors import VvsError


class Spent(NamedTuple):
    """What a command took."""

    seconds: float
    peak_bytes: int
    """Most memory that was resident, as the system reports when a process ends."""


def run_vvs(arguments: Sequence[str]) -> Spent:
    """Run ``vvs`` with these arguments; what it says goes to the terminal.

    Raises:
        VvsError: it failed.

    """
    start = perf_counter()
    process = os.posix_spawn(sys.executable, [sys.executable, "-m", "vvs.cli", *arguments], os.environ)
    _, status, usage = os.wait4(process, 0)
    if os.waitstatus_to_exitcode(status):
        raise VvsError(f"`vvs {' '.join(arguments)}` failed; the sentence above says why")
    return Spent(perf_counter() - start, 1024 * usage.ru_maxrss)
