"""Observing: who is told when a span of the decoding loop begins and ends, for traces and profilers.

Nobody, unless :func:`observed` says so for the current thread; then every stopwatch made inside tells.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import Protocol


class SpanObserver(Protocol):
    """Told of spans, properly nested."""

    def enter(self, span: str) -> None:
        """A span begins."""
        ...

    def leave(self, span: str, start: float, end: float) -> None:
        """A span has ended; ``start`` and ``end`` are seconds of ``time.perf_counter``."""
        ...


_OBSERVER: ContextVar[SpanObserver | None] = ContextVar("span observer", default=None)


def current_observer() -> SpanObserver | None:
    """Who is told, if anyone."""
    return _OBSERVER.get()


@contextmanager
def observed(observer: SpanObserver) -> Iterator[None]:
    """Let ``observer`` be told of every span that is measured by loops started inside the ``with`` block."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


@contextmanager
def marked(name: str) -> Iterator[None]:
    """Tell whoever observes that what is inside the ``with`` block is ``name``; spans inside nest in it."""
    observer = current_observer()
    if observer is None:
        yield
        return
    observer.enter(name)
    start = perf_counter()
    try:
        yield
    finally:
        observer.leave(name, start, perf_counter())
