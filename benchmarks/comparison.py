"""Comparison: contenders side by side in one run, over the same prompts and seeds.

Contenders take turns picture by picture, so that a machine that slows down slows all of them alike; a
ratio is formed pair by pair from neighbours in time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from vvs.benchmarks.contender import Contender
from vvs.runtime.pipeline import GeneratedImage, Pipeline
from vvs.statistics import Span, StepKind


@dataclass
class Measured:
    """Pictures of one contender, in the order of the prompts, and the seconds each took."""

    contender: Contender
    images: list[GeneratedImage] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def mean(self, figure: Callable[[GeneratedImage], float]) -> float:
        """Mean of a figure over the pictures."""
        return float(np.mean([figure(image) for image in self.images]))

    @property
    def outside_engines(self) -> dict[str, float]:
        """Share of the time in which no graph was running: of all steps, and of each kind (0 for none)."""
        counted = [image.statistics for image in self.images]
        total = {kind.value: sum(s.step_seconds[kind] for s in counted) for kind in StepKind}
        outside = {kind.value: sum(s.outside_engines[kind] for s in counted) for kind in StepKind}
        total["all"], outside["all"] = sum(total.values()), sum(outside.values())
        return {kind: outside[kind] / total[kind] if total[kind] else 0.0 for kind in total}

    def figures(self, baseline: "Measured") -> dict[str, Any]:
        """Everything that is reported, as plain numbers; ratios are to ``baseline``, pair by pair."""
        ratios = [b / a for a, b in zip(self.seconds, baseline.seconds, strict=True)]
        steps = sum(image.statistics.steps for image in self.images)
        skips = sum(image.statistics.skips for image in self.images)
        return {
            "config": self.contender.config.describe(),
            "forward_passes": self.mean(lambda i: i.statistics.forward_passes),
            "step_compression": self.mean(lambda i: i.statistics.step_compression),
            "accepted_verify": self._accepted(StepKind.VERIFY),
            "accepted_skip": self._accepted(StepKind.SKIP),
            "skip_share": skips / steps if steps else 0.0,
            "milliseconds": 1000 * float(np.median(self.seconds)),
            "ratio": float(np.median(ratios)),
            "outside_engines": self.outside_engines,
            "milliseconds_by_span": {
                span.value: 1000 * self.mean(lambda i, span=span: i.statistics.seconds[span])  # type: ignore[misc]
                for span in Span
            },
        }

    def _accepted(self, kind: StepKind) -> float:
        """Mean accepted length over all steps of one kind."""
        lengths = [image.statistics.accepted[kind] for image in self.images]
        count = sum(c.total() for c in lengths)
        return sum(length * n for c in lengths for length, n in c.items()) / count if count else 0.0


def compare(
    pipeline: Pipeline,
    contenders: Sequence[Contender],
    prompts: Sequence[str],
    seeds: Sequence[int],
    advance: Callable[[], None] = lambda: None,
) -> list[Measured]:
    """Run every contender on every prompt, one picture at a time, after one unmeasured picture each."""
    for contender in contenders:
        pipeline.generate(prompts[0], contender.config, seeds[0])
        advance()
    results = [Measured(contender) for contender in contenders]
    for prompt, seed in zip(prompts, seeds, strict=True):
        for result in results:
            start = perf_counter()
            (image,) = pipeline.generate(prompt, result.contender.config, seed).images
            result.seconds.append(perf_counter() - start)
            result.images.append(image)
            advance()
    return results
