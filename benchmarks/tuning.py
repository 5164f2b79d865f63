"""Tuning: the settings with the lowest latency on this device whose quality stays within a budget.

Three rounds. Step costs are measured at every width that the bundle's trees need; every candidate draws a
few pictures, and its steps times their costs predict its latency; the most promising are then timed against
AR, one picture at a time in turns, and judged, the fastest first, until one keeps within the budget. Only
trees that the bundle has can be chosen.
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
from vvs.errors import SettingsError
from vvs.runtime.pipeline import Pipeline
from vvs.skipping import SKIP_POLICIES, Never
from vvs.statistics import Statistics, StepKind

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
    """Candidates that are timed and judged."""
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
    """By rising latency."""
    chosen: Finalist
    baseline_quality: float | None


def contenders(pipeline: Pipeline, settings: TuningSettings, *, lossy: bool) -> list[Contender]:
    """Everything that is tried: AR; EAGLE-2 with every tree of the bundle; if lossy, LANTERN and VVS too."""
    lines = [BASELINE]
    rule = pipeline.configure("lantern").acceptance
    relaxed = rule if isinstance(rule, Lantern) else Lantern()
    for tree in pipeline.bundle.manifest.trees:
        lines.append(f"eagle tree={tree} acceptance=exact")
        for delta in settings.deltas if lossy else ():
            acceptance = ACCEPTANCE_RULES.describe(replace(relaxed, delta=delta))
            lines.append(f"lantern tree={tree} acceptance={acceptance}")
            lines += [
                f"vvs tree={tree} acceptance={acceptance} policy=uniform:{interval}"
                for interval in settings.intervals
            ]
    return [Contender.parse(line, pipeline) for line in lines]


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
    promising = sorted(others, key=lambda one: one.predicted)[: settings.finalists]
    finalists = _timed(pipeline, [baseline, *promising], prompts, settings.repeats)
    advance(0.75)
    chosen, judged, reference = _choose(pipeline, finalists, settings.budget, quality)
    advance(1.0)
    return Tuning(costs, tuple(candidates), judged, chosen, reference)


def _candidate(
    pipeline: Pipeline,
    contender: Contender,
    costs: Mapping[str, Mapping[str, float]],
    prompts: Sequence[str],
    samples: int,
) -> Candidate:
    shown = [prompts[i % len(prompts)] for i in range(samples)]
    statistics = pipeline.generate(shown, contender.config, 0).statistics
    tree = contender.config.tree
    of_tree = costs[tree] if tree else next(iter(costs.values()))
    return Candidate(
        contender,
        compression=float(np.mean([one.step_compression for one in statistics])),
        accepted=acceptance_by_depth(statistics),
        predicted=1000
        * float(np.mean([predict(one, of_tree, drafts=tree is not None) for one in statistics])),
    )


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


def predict(statistics: Statistics, costs: Mapping[str, float], *, drafts: bool) -> float:
    """Seconds of a picture, from its steps and the cost of each kind; a skip makes a verification wider."""
    verified, skips = statistics.steps_of(StepKind.VERIFY), statistics.skips
    if not drafts:
        return costs["prefill"] + verified * costs["AR"]
    wide = min(skips, verified)
    target = wide * costs["verify after a skip"] + (verified - wide) * costs["verify"]
    return costs["prefill"] + (verified + skips) * costs["draft"] + target


def _timed(
    pipeline: Pipeline, candidates: Sequence[Candidate], prompts: Sequence[str], repeats: int
) -> list[Finalist]:
    shown = [prompts[i % len(prompts)] for i in range(repeats)]
    measured = compare(pipeline, [one.contender for one in candidates], shown, range(repeats))
    return [
        Finalist(candidate, 1000 * float(np.median(result.seconds)))
        for candidate, result in zip(candidates, measured, strict=True)
    ]


def _choose(
    pipeline: Pipeline, finalists: list[Finalist], budget: float, quality: Quality | None
) -> tuple[Finalist, tuple[Finalist, ...], float | None]:
    """The fastest within the budget; AR always is. Lossless settings need no judging."""
    reference = quality.of(pipeline, finalists[0].candidate.contender.config) if quality else None
    by_latency = sorted(finalists, key=lambda one: one.milliseconds)
    chosen: Finalist | None = None
    for i, finalist in enumerate(by_latency):
        config = finalist.candidate.contender.config
        lossless = isinstance(config.acceptance, Exact) and config.skipping == Never()
        if not lossless and quality is not None and reference is not None:
            finalist = by_latency[i] = replace(finalist, quality=quality.of(pipeline, config))
            if finalist.quality is not None and finalist.quality < reference - budget:
                continue
        chosen = finalist
        break
    if chosen is None:
        raise RuntimeError("AR decoding was not among the finalists")
    return chosen, tuple(by_latency), reference


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
