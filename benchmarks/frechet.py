"""Fréchet: how far a set of pictures is from a reference, as Gaussians of their features.

The figure falls with the number of pictures even where nothing else changes (its small-sample bias), so
figures of different numbers of pictures must not be compared.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import Float64Array
from vvs.benchmarks.bootstrap import CONFIDENCE, SEED, Estimate
from vvs.errors import SettingsError

LEAST = 2
"""Pictures that a covariance needs."""


@dataclass(frozen=True)
class FrechetDistance:
    """The distance of n pictures, and how sure it is."""

    value: float
    interval: Estimate | None
    """At this n: how far the figure would move with other pictures. None: no resamples were asked for."""
    bias: float | None
    """How much higher the resamples came out on average, which is about what n pictures add to the figure."""


class FrechetReference:
    """What pictures are compared to: mean and covariance of its features ``[m, F]``, m >= 2."""

    def __init__(self, features: Float64Array) -> None:
        _check(features)
        self._mean = features.mean(0)
        covariance = np.cov(features, rowvar=False)
        self._trace = float(np.trace(covariance))
        values, vectors = np.linalg.eigh(covariance)
        self._root = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T  # [F, F]

    def distance(self, features: Float64Array) -> float:
        """Squared Fréchet distance of ``features [n, F]``, n >= 2 (Heusel et al. 2017, eq. 6).

        The trace of the root of the covariances' product is taken from the eigenvalues of the symmetric
        matrix ``A^(1/2) B A^(1/2)``, which are the same and stay real where a feature never varies.

        Raises:
            SettingsError: too few pictures.

        """
        return self._weighted(*self._centred(features), np.ones(len(features)))

    def estimate(self, features: Float64Array, resamples: int) -> FrechetDistance:
        """The distance with its bootstrap interval over pictures; the reference stays as it is.

        A resample holds fewer different pictures than the sample, so its figure has more of the small-sample
        bias. The interval is that of the resamples moved to the figure's own place: it says what other n
        pictures would give.

        Args:
            features: ``[n, F]``, n >= 2.
            resamples: how many; 0 gives no interval.

        """
        centred, rooted = self._centred(features)
        n = len(features)
        value = self._weighted(centred, rooted, np.ones(n))
        if not resamples:
            return FrechetDistance(value, None, None)
        rng = np.random.default_rng(SEED)
        drawn = np.array(
            [
                self._weighted(centred, rooted, np.bincount(rng.integers(n, size=n), minlength=n))
                for _ in range(resamples)
            ]
        )
        bias = float(drawn.mean()) - value
        low, high = np.quantile(drawn - bias, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return FrechetDistance(value, Estimate(value, max(0.0, float(low)), float(high)), bias)

    def _centred(self, features: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Features about the reference's mean ``[n, F]``, and those times the covariance's root."""
        _check(features)
        centred = features - self._mean
        return centred, centred @ self._root

    def _weighted(self, centred: Float64Array, rooted: Float64Array, weights: NDArray[Any]) -> float:
        """The distance of pictures that count ``weights [n]`` times, n in all."""
        n = len(weights)
        gap, shift = weights @ centred / n, weights @ rooted / n
        trace = (weights @ np.square(centred).sum(1) - n * gap @ gap) / (n - 1)
        product = ((rooted * weights[:, None]).T @ rooted - n * np.outer(shift, shift)) / (n - 1)
        shared = np.sqrt(np.clip(np.linalg.eigvalsh(product), 0, None)).sum()
        return float(gap @ gap + trace + self._trace - 2 * shared)


def _check(features: Float64Array) -> None:
    if len(features) < LEAST:
        raise SettingsError(
            f"{len(features)} pictures are given, but a covariance, and so a Fréchet distance, "
            f"needs at least {LEAST}, and many more to mean anything"
        )
