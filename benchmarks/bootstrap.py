"""Bootstrap: how sure a measured median or percentile is (Efron 1979, percentile intervals)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vvs.arrays import Float64Array

RESAMPLES = 2000
CONFIDENCE = 0.95
SEED = 0


@dataclass(frozen=True)
class Estimate:
    """A figure and the interval that holds it with 95% confidence."""

    value: float
    low: float
    high: float

    def overlaps(self, other: "Estimate") -> bool:
        """Whether the two intervals have a point in common, so that the figures may be the same."""
        return self.low <= other.high and other.low <= self.high

    def shown(self, form: str, unit: float = 1.0) -> str:
        """The figure and its interval in a unit: ``74.2 (70.0 to 78.5)``."""
        value, low, high = (format(unit * one, form) for one in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


def estimate(samples: Float64Array, figure: Callable[[Float64Array], Float64Array]) -> Estimate:
    """A figure of ``samples [n]``, n >= 1, with its bootstrap interval; the same samples give the same one.

    Args:
        samples: measurements.
        figure: reduces the last axis, such as a median.

    """
    rng = np.random.default_rng(SEED)
    drawn = figure(samples[rng.integers(len(samples), size=(RESAMPLES, len(samples)))])
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(float(figure(samples)), float(low), float(high))


def percentile(samples: Float64Array, share: float) -> Estimate:
    """The ``share`` quantile (0.5: the median) of ``samples [n]`` with its interval."""
    return estimate(samples, lambda drawn: np.quantile(drawn, share, axis=-1))


def mean(samples: Float64Array) -> Estimate:
    """The mean of ``samples [n]`` with its interval."""
    return estimate(samples, lambda drawn: drawn.mean(axis=-1))
