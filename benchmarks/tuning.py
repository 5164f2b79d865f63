"""Tuning: the settings with the lowest latency on this device whose quality stays within a budget.

Three rounds. Step costs are measured at every width that the bundle's trees need; every candidate draws a
few pictures, and its steps times their costs, and the work between them, predict its latency; the most
promising are then timed against AR, one picture at a time in turns, and judged, the fastest first, until one
keeps within the budget. If none of them does, the next most promising follow, as long as they are expected to
be faster than AR. Only trees that the bundle has can be chosen.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vvs.acceptance import ACCEPTANCE_RULES, Exact, Lantern
from vvs.benchmarks.comparison import compare
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.quality import Quality
from vvs.config import GenerationConfig
from vvs.errors import SettingsError
from vvs.runtime.pipeline import Pipeline
from vvs.skipping import SKIP_POLICIES, Never
from vvs.statistics import Span, Statistics, StepKind

BASELINE = "ar"


@dataclass(frozen=True)
class TuningSettings:
    """What is tried, and what it may cost in quality."""

    deltas: tuple[float, ...] = (0.1, 0.2, 0.3)
    """Bounds of LANTERN."""
    intervals: tuple[int, ...] = (2, 3, 5)
    """Of uniform skipping; never skipping is tried anyway."""
    budget: float = 2.0
    """Most that quality may fall below AR's, in its own unit."""
    samples: int = 4
    """Pictures per candidate for its acceptance."""
    finalists: int = 6
    """Candidates that are timed at once; more follow if none of them is good enough."""
    repeats: int = 8
    """Pictures per finalist for its latency."""

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("samples", "finalists", "repeats")}
        for name, value in counts.items():
            if value < 1:
                raise SettingsError(f"{name} is {value}, but it must be at least 1")
        if self.budget < 0:
            raise SettingsError(f"budget is {self.budget}, but it must be at least 0")


@dataclass(frozen=True)
class Candidate:
    """One configuration, what it did on the samples, and what it is expected to cost."""

    contender: Contender
    compression: float
    accepted: tuple[float, ...]
    """Share of verified steps that accepted at least 1, 2, ... tokens: the acceptance per depth."""
    predicted: float
    """Milliseconds per picture."""


@dataclass(frozen=True)
class Finalist:
    """A candidate that was timed."""

    candidate: Candidate
    milliseconds: float
    """Median per picture, with everything."""
    relative: float
    """The same as a share of AR's, timed in turns with it: how those timed at other moments compare."""
    quality: float | None = None
    """None: not judged, as a faster one was good enough or it is lossless."""

    @property
    def label(self) -> str:
        """The contender's line."""
        return self.candidate.contender.label


@dataclass(frozen=True)
class Tuning:
    """What was found."""

    costs: Mapping[str, Mapping[str, float]]
    """Seconds by tree and kind of step."""
    candidates: tuple[Candidate, ...]
    finalists: tuple[Finalist, ...]
    """By rising latency relative to AR's."""
    chosen: Finalist
    baseline_quality: float | None


def contenders(pipeline: Pipeline, settings: TuningSettings, *, lossy: bool) -> list[Contender]:
    """Everything that is tried.

    AR; EAGLE-2 with every tree of the bundle; if lossy, also LANTERN with each of them, VVS over the exact
    rule and over LANTERN, and the bundle's own VVS.
    """
    lines = [BASELINE]
    rule = pipeline.configure("lantern").acceptance
    relaxed = rule if isinstance(rule, Lantern) else Lantern()
    relaxations = [ACCEPTANCE_RULES.describe(replace(relaxed, delta=delta)) for delta in settings.deltas]
    for tree, shape in pipeline.bundle.manifest.trees.items():
        drafted = f"tree={tree} coupled=true" if shape.coupled else f"tree={tree}"
        lines.append(f"eagle {drafted} acceptance=exact")
        if lossy:
            lines += [f"lantern {drafted} acceptance={acceptance}" for acceptance in relaxations]
            lines += [
                f"vvs {drafted} acceptance={acceptance} policy=uniform:{interval}"
                for acceptance in ("exact", *relaxations)
                for interval in settings.intervals
            ]
    tried = [Contender.parse(line, pipeline) for line in lines]
    own = Contender.parse("vvs", pipeline)
    if lossy and own.config not in [one.config for one in tried]:
        tried.append(own)
    return tried


def tune(
    pipeline: Pipeline,
    costs: Mapping[str, Mapping[str, float]],
    prompts: Sequence[str],
    settings: TuningSettings,
    quality: Quality | None,
    advance: Callable[[float], None] = lambda share: None,
) -> Tuning:
    """Find the fastest settings within the budget.

    Args:
        pipeline: the bundle on the device.
        costs: seconds by tree and kind of step, see :func:`vvs.benchmarks.step_times.step_times`.
        prompts: sample prompts, at least one.
        settings: what is tried.
        quality: judges pictures; None leaves only settings that lose nothing.
        advance: told how much of the work is done, in 0..1.

    """
    tried = contenders(pipeline, settings, lossy=quality is not None)
    candidates = []
    for i, contender in enumerate(tried):
        candidates.append(_candidate(pipeline, contender, costs, prompts, settings.samples))
        advance((i + 1) / len(tried) / 2)
    baseline, *others = candidates
    exam = _Exam.beside(baseline, pipeline, settings.budget, quality)
    chosen, finalists = _search(
        exam, baseline, others, prompts, settings, lambda share: advance((1 + share) / 2)
    )
    return Tuning(costs, tuple(candidates), finalists, chosen, exam.reference)


def _search(
    exam: "_Exam",
    baseline: Candidate,
    others: Sequence[Candidate],
    prompts: Sequence[str],
    settings: TuningSettings,
    advance: Callable[[float], None],
) -> tuple[Finalist, tuple[Finalist, ...]]:
    """Time and judge candidates, the most promising first, until one is faster than AR and good enough."""
    promising = sorted(others, key=lambda one: one.predicted)
    hopes = sum(one.predicted < baseline.predicted for one in promising)
    known: list[Finalist] = []
    for start in range(0, max(1, hopes), settings.finalists):
        wave = promising[start : start + settings.finalists]
        ar, *timed = _timed(exam.pipeline, [baseline, *wave], prompts, settings.repeats)
        chosen, judged = exam.choose([ar, *timed])
        known += [one for one in judged if not known or one is not ar]
        if chosen is not ar:
            break
        advance(min(1.0, (start + settings.finalists) / max(1, hopes)))
    else:
        chosen = next(one for one in known if one.candidate is baseline)
    advance(1.0)
    return chosen, tuple(sorted(known, key=lambda one: one.relative))


def _candidate(
    pipeline: Pipeline,
    contender: Contender,
    costs: Mapping[str, Mapping[str, float]],
    prompts: Sequence[str],
    samples: int,
) -> Candidate:
    shown = [prompts[i % len(prompts)] for i in range(samples)]
    statistics = pipeline.generate(shown, contender.config, 0).statistics
    seconds = [predict(one, contender.config, costs) + _between(one) / samples for one in statistics]
    return Candidate(
        contender,
        compression=float(np.mean([one.step_compression for one in statistics])),
        accepted=acceptance_by_depth(statistics),
        predicted=1000 * float(np.mean(seconds)),
    )


def _between(statistics: Statistics) -> float:
    """Seconds of a batch that were spent outside engines; 0 where a loop does not tell."""
    return sum(statistics.outside_engines.values()) + statistics.seconds[Span.DECODE]


def acceptance_by_depth(statistics: Sequence[Statistics]) -> tuple[float, ...]:
    """Share of verified steps that accepted at least 1, 2, ... drafted tokens."""
    lengths: Counter[int] = Counter()
    for one in statistics:
        lengths.update(one.accepted[StepKind.VERIFY])
    total = max(1, lengths.total())
    deepest = max(lengths, default=0)
    return tuple(
        sum(n for length, n in lengths.items() if length >= depth) / total for depth in range(1, deepest + 1)
    )


def predict(
    statistics: Statistics, config: GenerationConfig, costs: Mapping[str, Mapping[str, float]]
) -> float:
    """Seconds of a picture inside engines, from its steps and the cost of each kind, by tree.

    A skip makes a verification wider.
    """
    verified, skips = statistics.steps_of(StepKind.VERIFY), statistics.skips
    if config.tree is None:
        of_any = next(iter(costs.values()))
        return of_any["prefill"] + verified * of_any["AR"]
    of_tree, of_skips = costs[config.tree], costs[config.skip_tree or config.tree]
    wide = min(skips, verified)
    target = wide * of_tree["verify after a skip"] + (verified - wide) * of_tree["verify"]
    return of_tree["prefill"] + verified * of_tree["draft"] + skips * of_skips["draft"] + target


def _timed(
    pipeline: Pipeline, candidates: Sequence[Candidate], prompts: Sequence[str], repeats: int
) -> list[Finalist]:
    shown = [prompts[i % len(prompts)] for i in range(repeats)]
    measured = compare(pipeline, [one.contender for one in candidates], shown, range(repeats))
    medians = [1000 * float(np.median(result.seconds)) for result in measured]
    return [
        Finalist(candidate, median, median / medians[0])
        for candidate, median in zip(candidates, medians, strict=True)
    ]


@dataclass(frozen=True)
class _Exam:
    """Who is good enough."""

    pipeline: Pipeline
    budget: float
    quality: Quality | None
    reference: float | None
    """AR's quality."""

    @classmethod
    def beside(
        cls, baseline: Candidate, pipeline: Pipeline, budget: float, quality: Quality | None
    ) -> "_Exam":
        """Judge AR once, for all others to be compared with."""
        reference = quality.of(pipeline, baseline.contender.config) if quality else None
        return cls(pipeline, budget, quality, reference)

    def choose(self, finalists: Sequence[Finalist]) -> tuple[Finalist, list[Finalist]]:
        """Pick the fastest within the budget; AR, the first one, always is. Also all, what was judged noted.

        Lossless settings need no judging.
        """
        noted = sorted(finalists, key=lambda one: one.relative)
        for i, finalist in enumerate(noted):
            judged = noted[i] = self._judged(finalist)
            if judged.quality is None or self.reference is None:
                return judged, noted
            if judged.quality >= self.reference - self.budget:
                return judged, noted
        raise RuntimeError("AR decoding was not among the finalists")

    def _judged(self, finalist: Finalist) -> Finalist:
        config = finalist.candidate.contender.config
        lossless = isinstance(config.acceptance, Exact) and config.skipping == Never()
        if lossless or self.quality is None:
            return finalist
        return replace(finalist, quality=self.quality.of(self.pipeline, config))


def defaults_of(finalist: Finalist) -> dict[str, Any]:
    """The choice, as a manifest recommends it: its mode, its tree for every mode, its rules for its own."""
    config = finalist.candidate.contender.config
    mode = finalist.label.split()[0]
    if config.tree is None:
        return {"mode": mode}
    own: dict[str, Any] = {"acceptance": ACCEPTANCE_RULES.describe(config.acceptance)}
    if config.skipping != Never():
        own["skipping"] = SKIP_POLICIES.describe(config.skipping)
    return {"mode": mode, "tree": config.tree, "modes": {mode: own}}
