"""Progress: TensorRT's own progress monitor as one bar, and Ctrl-C as a cancelled build.

TensorRT reports nested phases of steps, from several threads. Ctrl-C must not raise inside its callbacks, so
it is only noted; the next step then tells the builder to stop.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from vvs.runtime.tensorrt_package import TensorRT

Show = Callable[[float, str], None]
"""Is told the finished share of a build and the name of the innermost phase."""


class Phases:
    """Nested phases and how far each is."""

    def __init__(self, show: Show) -> None:
        self.cancelled = False
        self._show = show
        self._lock = threading.Lock()
        self._parents: dict[str, str | None] = {}
        self._steps: dict[str, tuple[int, int]] = {}

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """A phase of ``steps`` steps begins."""
        with self._lock:
            self._parents[name] = parent
            self._steps[name] = (0, max(1, steps))
        self._report(name)

    def step(self, name: str, index: int) -> bool:
        """Step ``index`` of a phase is done; False asks the builder to stop."""
        with self._lock:
            if name in self._steps:
                self._steps[name] = (index + 1, self._steps[name][1])
        self._report(name)
        return not self.cancelled

    def finish(self, name: str) -> None:
        """A phase ends."""
        with self._lock:
            self._parents.pop(name, None)
            self._steps.pop(name, None)

    def share(self) -> float:
        """The finished share of everything, in [0, 1]."""
        with self._lock:
            roots = [name for name, parent in self._parents.items() if parent not in self._parents]
            return max((self._share(name) for name in roots), default=0.0)

    def _share(self, name: str) -> float:
        done, steps = self._steps[name]
        inside = max((self._share(n) for n, parent in self._parents.items() if parent == name), default=0.0)
        return min(1.0, (done + inside) / steps)

    def _report(self, name: str) -> None:
        self._show(self.share(), name)


def make_monitor(package: TensorRT, phases: Phases) -> Any:
    """A TensorRT progress monitor that tells ``phases``."""
    base: Any = package.api.IProgressMonitor

    class Monitor(base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            phases.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return phases.step(phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            phases.finish(phase_name)

    return Monitor()


@contextmanager
def cancel_on_interrupt(phases: Phases) -> Iterator[None]:
    """Note Ctrl-C instead of raising; raises KeyboardInterrupt at the end if there was one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(_signal: int, _frame: FrameType | None) -> None:
        phases.cancelled = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if phases.cancelled:
        raise KeyboardInterrupt
