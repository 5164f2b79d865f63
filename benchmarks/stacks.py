"""Stacks: where a function spends its time, by looking at its call stack at regular intervals.

Results are collapsed stacks, one line each (``outer;inner count``), as flame graph tools read them, and a
picture of them.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

from vvs.benchmarks.picture import new_picture, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Stack = tuple[str, ...]
"""Function names, the outermost first."""

INTERVAL = 0.001
"""Seconds between looks."""
NARROWEST_LABEL = 0.04
"""Bars below this share of the width carry no name."""
INCHES = (12.0, 6.0)

T = TypeVar("T")


def sampled(work: Callable[[], T], package: str = "vvs.") -> tuple[T, Counter[Stack]]:
    """Run ``work`` and count the stacks seen, functions of modules that start with ``package`` only."""
    thread, stop, seen = threading.get_ident(), threading.Event(), Counter[Stack]()

    def look() -> None:
        while not stop.wait(INTERVAL):
            frame = sys._current_frames().get(thread)
            stack = _names(frame, package)
            if stack:
                seen[stack] += 1

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        result = work()
    finally:
        stop.set()
        looker.join()
    return result, seen


def _names(frame: FrameType | None, package: str) -> Stack:
    names: list[str] = []
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(package):
            names.append(f"{module.removeprefix(package)}.{frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(reversed(names))


def collapsed(stacks: Counter[Stack]) -> str:
    """One line for each stack."""
    return "".join(f"{';'.join(stack)} {count}\n" for stack, count in sorted(stacks.items()))


def draw(stacks: Counter[Stack], path: Path, title: str) -> None:
    """Draw the stacks as bars, callers above what they call, as wide as their share of the time.

    Raises:
        SettingsError: matplotlib is missing.

    """
    figure = new_picture(INCHES)
    axes = figure.subplots()
    _bars(axes, stacks, 0.0, 0, max(1, stacks.total()))
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.set_xlabel("share of the time")
    axes.set_title(title, loc="left")
    save_picture(figure, path)


def _bars(axes: "Axes", stacks: Counter[Stack], left: float, level: int, total: int) -> None:
    callees: dict[str, Counter[Stack]] = {}
    for stack, count in stacks.items():
        if stack:
            callees.setdefault(stack[0], Counter())[stack[1:]] += count
    for name, below in sorted(callees.items()):
        share = below.total() / total
        axes.barh(
            level, share, left=left, height=0.95, color=f"C{crc32(name.encode()) % 10}", edgecolor="white"
        )
        if share >= NARROWEST_LABEL:
            axes.text(left + share / 2, level, name.rpartition(".")[2], ha="center", va="center",
                      fontsize="x-small", clip_on=True)  # fmt: skip
        _bars(axes, below, left, level + 1, total)
        left += share
