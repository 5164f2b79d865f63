"""Running the kernels on the host with real threads and barriers, where ThreadSanitizer sees their races.

An executable of its own, since a sanitizer wants to be there from the start of its process. Slow; for tests.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vvs.errors import BackendError
from vvs.runtime.device.calls import Kernel
from vvs.runtime.kernels.host import built, launchers, scalar
from vvs.runtime.kernels.sources import checked_source, source

OPTIONS = ("-DVVS_HOST_THREADS", "-pthread", "-O1", "-g1")
SANITIZERS = {
    "thread": ("-fsanitize=thread",),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
}
RACE = "WARNING: ThreadSanitizer: data race"
TIMEOUT_S = 120


class ThreadedLaunch(NamedTuple):
    """One launch with real threads; arrays are written in place once all launches have run."""

    kernel: Kernel
    grid: tuple[int, int]
    threads: int
    arguments: tuple[NDArray[Any] | int | float, ...]


class ThreadedRun(NamedTuple):
    """What running launches came to."""

    races: int
    """Data races that ThreadSanitizer reported."""
    report: str


def run_threaded(
    launches: Sequence[ThreadedLaunch],
    *,
    sanitizer: str = "thread",
    defines: tuple[str, ...] = (),
    timeout_s: float = TIMEOUT_S,
) -> ThreadedRun:
    """Run launches in order, each block with real threads.

    Each launch works on copies of its arrays, as they were when this was called; what it makes of them is
    copied back, those of later launches over those of earlier ones.

    Args:
        launches: what to run.
        sanitizer: ``thread`` counts races; ``address`` fails on memory that is not there and on undefined
            behaviour.
        defines: macros to compile with.
        timeout_s: when to give up.

    Raises:
        BackendError: there is no C++ compiler, or the run crashes or does not end.

    """
    text = f"{checked_source()}\n{launchers()}\n{source('host_threads.cpp')}\n"
    program = built(text, "", (*OPTIONS, *SANITIZERS[sanitizer]), defines)
    with tempfile.TemporaryDirectory() as folder:
        tape, results = Path(folder) / "tape", Path(folder) / "results"
        tape.write_bytes(b"".join(map(_record, launches)))
        report = _run([str(program), str(tape), str(results)], timeout_s)
        _copy_back(launches, results.read_bytes(), report)
    return ThreadedRun(report.count(RACE), report)


def _run(command: list[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env={"TSAN_OPTIONS": "exitcode=0"},
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(
            f"the kernels did not end on real threads within {timeout_s:g} s: some threads wait at a barrier "
            "that others do not come to"
        ) from error
    if done.returncode:
        raise BackendError(f"the kernels failed on real threads ({done.returncode}): {done.stderr[:2000]}")
    return done.stderr


def _record(launch: ThreadedLaunch) -> bytes:
    name = launch.kernel.name.encode()
    numbers = (*launch.grid, launch.threads, len(launch.arguments))
    parts = [_number(len(name)), name, *map(_number, numbers)]
    for parameter, argument in zip(launch.kernel.parameters, launch.arguments, strict=True):
        is_array = isinstance(argument, np.ndarray)  # or a condition, which is passed by its address too
        if isinstance(argument, np.ndarray):
            content = argument.tobytes()
        else:
            content = bytes(scalar(parameter, argument))
        parts += [_number(len(content)), content, _number(int(is_array))]
    return b"".join(parts)


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _copy_back(launches: Sequence[ThreadedLaunch], results: bytes, report: str) -> None:
    arrays = [argument for launch in launches for argument in launch.arguments]
    expected = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    if len(results) != expected:  # the sanitizer ends a program that crashes without a failing exit status
        raise BackendError(f"the kernels crashed on real threads: {report[:2000]}")
    at = 0
    for launch in launches:
        for parameter, argument in zip(launch.kernel.parameters, launch.arguments, strict=True):
            if not isinstance(argument, np.ndarray):
                continue
            if parameter.writes:
                values = np.frombuffer(results, argument.dtype, argument.size, at)
                argument[...] = values.reshape(argument.shape)
            at += argument.nbytes
