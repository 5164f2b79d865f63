"""Timing: contenders side by side in one run, warmed up, in turns, over the same prompts and seeds.

Warm-up and duration are set as in trtexec: every contender runs for a while unmeasured, then for at least
so many iterations and at least so long. Contenders take turns call by call, each round starting with another
one: a machine that slows down slows all alike. One that has enough drops out, so that slow ones need not
repeat themselves until fast ones are done; only the baseline stays to the end. Ratios are formed pair by
pair, from neighbours in time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from vvs.arrays import Float64Array
from vvs.benchmarks.bootstrap import percentile
from vvs.benchmarks.memory import forget_peak, peak_bytes
from vvs.errors import SettingsError
from vvs.observing import marked
from vvs.statistics import Span, Statistics, StepKind


@dataclass(frozen=True)
class TimingSettings:
    """How long to measure."""

    warm_up_ms: float = 200.0
    """Unmeasured, for each contender; at least one call."""
    duration_s: float = 3.0
    """Measured, for each contender, at least."""
    iterations: int = 10
    """Measured calls of each contender, at least."""
    seed: int = 0
    """Of the first picture."""

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.warm_up_ms < 0 or self.duration_s < 0:
            raise SettingsError(
                f"iterations is {self.iterations}, warm-up {self.warm_up_ms} ms and duration "
                f"{self.duration_s} s, but they must be at least 1, 0 and 0"
            )


class Runner(Protocol):
    """Something that draws a batch: a configuration of our pipeline, or a baseline."""

    @property
    def label(self) -> str:
        """Its name in the report."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """Its settings, as plain data."""
        ...

    @property
    def foreign(self) -> bool:
        """Whether it is what a user would run instead of this toolkit."""
        ...

    def run(self, prompts: Sequence[str], seeds: Sequence[int]) -> tuple[Statistics, ...]:
        """Draw one picture for each prompt, to the last pixel."""
        ...


@dataclass(eq=False)
class Timed:
    """Measurements of one runner at one batch size."""

    runner: Runner
    batch: int
    seconds: list[float] = field(default_factory=list)
    """Of each call."""
    statistics: list[Statistics] = field(default_factory=list)
    """Of every picture."""
    peak: int | None = None
    """Most bytes that the whole process held resident during a call."""

    def ratios(self, baseline: "Timed") -> Float64Array:
        """How many times faster than ``baseline``, call by call."""
        paired = baseline.seconds[: len(self.seconds)]  # both ran in every round until this one had enough
        return np.array([theirs / ours for ours, theirs in zip(self.seconds, paired, strict=True)])

    def figures(self, baseline: "Timed") -> dict[str, Any]:
        """Everything that is reported, as plain data; times in milliseconds."""
        milliseconds = 1000 * np.array(self.seconds)
        tokens = self.statistics[0].image_tokens
        rate = self.batch * len(self.seconds) / sum(self.seconds)
        steps = sum(s.steps for s in self.statistics)
        # Baselines do not time their steps.
        timed = any(sum(s.step_seconds.values()) for s in self.statistics)
        return {
            "label": self.runner.label,
            "config": self.runner.config,
            "foreign": self.runner.foreign,
            "batch": self.batch,
            "calls": len(self.seconds),
            "latency_ms": {
                name: vars(percentile(milliseconds, share))
                for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
            },
            "ratio": vars(percentile(self.ratios(baseline), 0.5)),
            "images_per_second": rate,
            "tokens_per_second": rate * tokens,
            "forward_passes": self._mean(lambda s: s.forward_passes),
            "step_compression": self._mean(lambda s: s.step_compression),
            "accepted_verify": self._accepted(StepKind.VERIFY),
            "accepted_skip": self._accepted(StepKind.SKIP),
            "accepted_lengths": {kind.value: self._histogram(kind) for kind in StepKind},
            "accepted_at_least": {kind.value: self._at_least(kind) for kind in StepKind},
            "skip_share": sum(s.skips for s in self.statistics) / steps if steps else 0.0,
            "peak_bytes": self.peak,
            "device_ms": 1000 * self._mean(_inside) if timed else None,
            "outside_ms": 1000 * self._mean(lambda s: sum(s.outside_engines.values())) if timed else None,
            "phase_ms": {
                span.value: 1000 * self._mean(lambda s, span=span: s.seconds[span])  # type: ignore[misc]
                for span in Span
            },
        }

    def _mean(self, figure: Callable[[Statistics], float]) -> float:
        return float(np.mean([figure(s) for s in self.statistics]))

    def _lengths(self, kind: StepKind) -> Float64Array:
        """Accepted lengths of all steps of a kind."""
        return np.array([n for s in self.statistics for n in s.accepted[kind].elements()], np.float64)

    def _accepted(self, kind: StepKind) -> float:
        lengths = self._lengths(kind)
        return float(lengths.mean()) if lengths.size else 0.0

    def _histogram(self, kind: StepKind) -> dict[str, int]:
        """How many steps of a kind had each accepted length."""
        counted = sum((s.accepted[kind] for s in self.statistics), Counter[int]())
        return {str(length): counted[length] for length in sorted(counted)}

    def _at_least(self, kind: StepKind) -> list[float]:
        """Share of the steps that accepted at least 1, 2, ... drafted tokens: acceptance per tree depth."""
        lengths = self._lengths(kind)
        deepest = int(lengths.max()) if lengths.size else 0
        return [float((lengths >= depth).mean()) for depth in range(1, deepest + 1)]


def _inside(statistics: Statistics) -> float:
    """Seconds of a picture's steps in which a graph was running."""
    return sum(statistics.step_seconds.values()) - sum(statistics.outside_engines.values())


def measure(
    runners: Sequence[Runner],
    prompts: Sequence[str],
    batch: int,
    settings: TimingSettings,
    advance: Callable[[float], None] = lambda share: None,
) -> list[Timed]:
    """Measure all runners at one batch size.

    Args:
        runners: the first is what the others are compared to.
        prompts: taken in turn, over and over.
        batch: pictures per call.
        settings: how long.
        advance: told the share that is done, after every round.

    """
    results = [Timed(runner, batch) for runner in runners]

    def drawn(call: int) -> tuple[list[str], list[int]]:
        first = call * batch
        return (
            [prompts[(first + i) % len(prompts)] for i in range(batch)],
            [settings.seed + first + i for i in range(batch)],
        )

    for runner in runners:
        _warm_up(runner, *drawn(0), settings.warm_up_ms / 1000)
    call = 0
    baseline = results[0]
    while waiting := [result for result in results if not _enough(result, settings)]:
        given = drawn(call)
        taking = waiting if baseline in waiting else [baseline, *waiting]
        first = call % len(taking)
        for result in (*taking[first:], *taking[:first]):
            _measure_one(result, *given)
        call += 1
        advance(min(_done(result, settings) for result in results))
    return results


def _warm_up(runner: Runner, prompts: list[str], seeds: list[int], seconds: float) -> None:
    start = perf_counter()
    while True:
        runner.run(prompts, seeds)
        if perf_counter() - start >= seconds:
            return


def _measure_one(result: Timed, prompts: list[str], seeds: list[int]) -> None:
    tells = forget_peak()
    with marked(result.runner.label):
        start = perf_counter()
        statistics = result.runner.run(prompts, seeds)
        result.seconds.append(perf_counter() - start)
    result.statistics += statistics
    peak = peak_bytes() if tells else None
    if peak is not None:
        result.peak = max(peak, result.peak or 0)


def _done(result: Timed, settings: TimingSettings) -> float:
    """Share of what a runner is to be measured that it has been."""
    by_count = len(result.seconds) / settings.iterations
    by_time = sum(result.seconds) / settings.duration_s if settings.duration_s else 1.0
    return min(1.0, by_count, by_time)


def _enough(result: Timed, settings: TimingSettings) -> bool:
    return _done(result, settings) >= 1
