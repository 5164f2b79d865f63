"""Statistics: what one request cost, counted and timed.

Accepted length has one definition here: the drafted tokens that a step adds to the known ones, the root
not counted. For a verified step that is the number of accepted nodes, for a skipped one it is m. The last
step counts whole, also where its surplus tokens fall off the end of the image.

Seconds are wall-clock seconds of the whole batch while this request was unfinished: requests of one batch
wait for the same calls, so their seconds are not to be added up.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Any, NamedTuple

from vvs.observing import SpanObserver, current_observer


class StepKind(StrEnum):
    """Whether a step ran the target."""

    VERIFY = "verify"
    SKIP = "skip"


class Span(StrEnum):
    """Where the time goes."""

    PREFILL = "prefill"
    """The whole prefill; the spans below are those of steps."""
    DRAFT = "draft"
    """Drafting calls of the session."""
    TARGET = "target"
    """Target calls of the session."""
    ACCEPT = "accept"
    """Judging drafted tokens and sampling roots, on the host."""
    COMMIT = "commit"
    """Commit calls of the session."""
    DECODE = "decode"
    """Turning tokens into an image; added by whoever does that."""
    DEVICE = "device"
    """Waiting for a device that decides for itself: it drafts, verifies and commits unseen."""
    HOST = "host"
    """Everything else in the loop: assembling inputs, policies, bookkeeping."""


class StepTimes(NamedTuple):
    """Seconds of one step of a batch, or of its prefill."""

    spans: Mapping[Span, float]
    """Every span; DECODE is 0 here, and PREFILL in all steps."""
    total: float
    engines: float
    """Seconds inside graph executions, of ``total``."""

    @property
    def outside_engines(self) -> float:
        """Seconds of the step in which no graph was running."""
        return max(0.0, self.total - self.engines)


_UNTIMED = dict.fromkeys(Span, 0.0)


class _Measured:
    """Adds the time inside a ``with`` block to one span. A class: a generator costs several times more."""

    __slots__ = ("_observer", "_span", "_spans", "_start")

    def __init__(self, spans: dict[Span, float], span: Span, observer: SpanObserver | None) -> None:
        self._spans = spans
        self._span = span
        self._observer = observer

    def __enter__(self) -> None:
        if self._observer is not None:
            self._observer.enter(self._span)
        self._start = perf_counter()

    def __exit__(self, *raised: object) -> None:
        end = perf_counter()
        self._spans[self._span] += end - self._start
        if self._observer is not None:
            self._observer.leave(self._span, self._start, end)


class Stopwatch:
    """Times the spans of one step after another. What is in no other span is HOST."""

    def __init__(self) -> None:
        self._spans = _UNTIMED.copy()
        self._started = perf_counter()
        self._engines = 0.0
        self._observer = current_observer()

    def measure(self, span: Span) -> AbstractContextManager[None]:
        """Add the time inside the ``with`` block to ``span``."""
        return _Measured(self._spans, span, self._observer)

    def seconds(self, span: Span) -> float:
        """Seconds measured in a span since the last lap."""
        return self._spans[span]

    def resume(self) -> None:
        """Start the step's clock again, leaving out the time since the last lap (the caller had control)."""
        self._started = perf_counter()

    def lap(self, engine_seconds: float) -> StepTimes:
        """End a step and return its times; ``engine_seconds`` is the session's running total."""
        now = perf_counter()
        total = now - self._started
        spans = self._spans
        spans[Span.HOST] = max(0.0, total - sum(spans.values()))
        times = StepTimes(spans, total, engine_seconds - self._engines)
        self._spans = _UNTIMED.copy()
        self._started = now
        self._engines = engine_seconds
        return times


@dataclass
class Statistics:
    """Counters of one request, filled step by step by the loop."""

    image_tokens: int
    forward_passes: int = 0
    """Target runs: prefill and verified steps."""
    accepted: dict[StepKind, Counter[int]] = field(
        default_factory=lambda: {kind: Counter() for kind in StepKind}
    )
    """How often each accepted length occurred, verified and skipped steps apart."""
    seconds: dict[Span, float] = field(default_factory=_UNTIMED.copy)
    step_seconds: dict[StepKind, float] = field(default_factory=lambda: dict.fromkeys(StepKind, 0.0))
    """Seconds of the steps of each kind."""
    outside_engines: dict[StepKind, float] = field(default_factory=lambda: dict.fromkeys(StepKind, 0.0))
    """Seconds of the steps of each kind in which no graph was running."""
    untimed_steps: int = 0
    """Steps that nobody timed one by one: their seconds are in no kind, but, all together, in ``seconds``."""

    def count_prefill(self, times: StepTimes) -> None:
        """Count the prefill."""
        self.forward_passes += 1
        self.seconds[Span.PREFILL] += times.total

    def count_step(self, kind: StepKind, accepted: int, times: StepTimes | None) -> None:
        """Count a step of this request; without times, it is one of those that :meth:`count_unseen` timed."""
        self.forward_passes += kind is StepKind.VERIFY
        self.accepted[kind][accepted] += 1
        if times is None:
            self.untimed_steps += 1
            return
        self.step_seconds[kind] += times.total
        self.outside_engines[kind] += times.outside_engines
        self.count_unseen(times)

    def count_unseen(self, times: StepTimes) -> None:
        """Count the time of steps that cannot be told apart."""
        totals = self.seconds
        for span, seconds in times.spans.items():
            if seconds:
                totals[span] += seconds

    def steps_of(self, kind: StepKind) -> int:
        """Count the steps of one kind."""
        return self.accepted[kind].total()

    @property
    def steps(self) -> int:
        """Verified and skipped steps; the prefill is none."""
        return sum(map(self.steps_of, StepKind))

    @property
    def skips(self) -> int:
        """Steps that did not run the target."""
        return self.steps_of(StepKind.SKIP)

    @property
    def step_compression(self) -> float:
        """Image tokens per forward pass; plain AR decoding has exactly 1. 0 before the prefill."""
        return self.image_tokens / self.forward_passes if self.forward_passes else 0.0

    def mean_accepted(self, kind: StepKind) -> float:
        """Mean accepted length of the steps of one kind; 0 if there were none."""
        lengths = self.accepted[kind]
        return sum(length * n for length, n in lengths.items()) / lengths.total() if lengths else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Write everything as plain JSON values; seconds by kind are null where steps were not timed."""
        timed = not self.untimed_steps
        return {
            "image_tokens": self.image_tokens,
            "forward_passes": self.forward_passes,
            "steps": self.steps,
            "skips": self.skips,
            "step_compression": self.step_compression,
            "mean_accepted": {kind.value: self.mean_accepted(kind) for kind in StepKind},
            "accepted_lengths": {
                kind.value: {str(length): lengths[length] for length in sorted(lengths)}
                for kind, lengths in self.accepted.items()
            },
            "seconds": {span.value: seconds for span, seconds in self.seconds.items()},
            "step_seconds": _by_kind(self.step_seconds) if timed else None,
            "outside_engines": _by_kind(self.outside_engines) if timed else None,
        }


def _by_kind(seconds: Mapping[StepKind, float]) -> dict[str, float]:
    return {kind.value: each for kind, each in seconds.items()}
