"""Tracing: one generation as a file for chrome://tracing or Perfetto, and as NVTX ranges for Nsight Systems.

Works on every backend, since what is told are the spans of the decoding loop (:mod:`vvs.observing`).
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import get_ident
from time import perf_counter
from typing import Any

from vvs.errors import SettingsError
from vvs.observing import SpanObserver, observed
from vvs.runtime.whole_file import whole_file

MICRO = 1e6
NVTX_DOMAIN = "vvs"


class ChromeTrace:
    """Collects spans, and writes them in the Trace Event Format."""

    def __init__(self) -> None:
        self._origin = perf_counter()
        self.events: list[dict[str, Any]] = []

    def enter(self, span: str) -> None:
        """Nothing to do: a complete event says when it began."""

    def leave(self, span: str, start: float, end: float) -> None:
        """Add one complete event."""
        self.events.append(
            {
                "name": str(span),
                "cat": NVTX_DOMAIN,
                "ph": "X",
                "ts": MICRO * (start - self._origin),
                "dur": MICRO * (end - start),
                "pid": os.getpid(),
                "tid": get_ident(),
            }
        )

    def write(self, path: Path) -> None:
        """Write the file whole or not at all."""
        with whole_file(path) as temporary:
            temporary.write_text(json.dumps({"traceEvents": self.events, "displayTimeUnit": "ms"}))


class NvtxRanges:
    """Puts a range around every span, which Nsight Systems shows (``nsys profile vvs generate ... --nvtx``).

    Raises:
        SettingsError: the package nvtx is missing.

    """

    def __init__(self) -> None:
        if find_spec("nvtx") is None:
            raise SettingsError(
                "NVTX ranges need the package nvtx, which this Python does not have; "
                "install it with `pip install nvtx`"
            )
        import nvtx

        self._nvtx = nvtx

    def enter(self, span: str) -> None:
        """Push a range."""
        self._nvtx.push_range(str(span), domain=NVTX_DOMAIN)

    def leave(self, span: str, start: float, end: float) -> None:
        """Pop it."""
        self._nvtx.pop_range(domain=NVTX_DOMAIN)


class _Several:
    """Tells several observers, the last one innermost."""

    def __init__(self, observers: list[SpanObserver]) -> None:
        self._observers = observers

    def enter(self, span: str) -> None:
        for observer in self._observers:
            observer.enter(span)

    def leave(self, span: str, start: float, end: float) -> None:
        for observer in reversed(self._observers):
            observer.leave(span, start, end)


@contextmanager
def traced(path: Path | None, *, nvtx: bool = False) -> Iterator[None]:
    """Write a Chrome trace of what is generated inside to ``path``, and mark NVTX ranges; or neither."""
    chrome = ChromeTrace() if path is not None else None
    observers: list[SpanObserver] = [chrome] if chrome is not None else []
    if nvtx:
        observers.append(NvtxRanges())
    if not observers:
        yield
        return
    with observed(_Several(observers)):
        yield
    if chrome is not None and path is not None:
        chrome.write(path)
