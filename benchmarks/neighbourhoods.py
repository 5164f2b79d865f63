"""Neighbourhoods: precision and recall of a set of pictures (Kynkäänniemi et al. 2019).

Precision is the share of pictures that lie in the neighbourhood of a reference picture, recall the share of
reference pictures that lie in the neighbourhood of a picture. A neighbourhood is the ball of features that
reaches to the k-th nearest of its own set.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vvs.arrays import BoolArray, Float64Array
from vvs.errors import SettingsError

NEIGHBOURS = 3
"""k, as published."""
CHUNK = 500
ROUNDING = 1e-9
"""Of the largest squared norm: features that coincide count as near, though rounding may part them."""


class PrecisionRecall(NamedTuple):
    """Shares in 0..1."""

    precision: float
    recall: float


def precision_recall(features: Float64Array, reference: Float64Array, k: int = NEIGHBOURS) -> PrecisionRecall:
    """Precision and recall of ``features [n, F]`` against ``reference [m, F]``.

    Raises:
        SettingsError: a set has k pictures or fewer.

    """
    for given in (features, reference):
        if len(given) <= k:
            raise SettingsError(
                f"{len(given)} pictures are given, but neighbourhoods of {k} need at least {k + 1}"
            )
    # About their common middle, squared distances lose less to rounding.
    middle = reference.mean(0)
    ours, theirs = features - middle, reference - middle
    slack = ROUNDING * max(np.square(ours).sum(1).max(), np.square(theirs).sum(1).max())
    return PrecisionRecall(
        float(_covered(ours, theirs, _radii(theirs, k) + slack).mean()),
        float(_covered(theirs, ours, _radii(ours, k) + slack).mean()),
    )


def _radii(features: Float64Array, k: int) -> Float64Array:
    """Squared distance ``[n]`` to the k-th nearest, the point itself not counted."""
    return np.concatenate([np.partition(chunk, k, axis=1)[:, k] for chunk in _squared(features, features)])


def _covered(points: Float64Array, centres: Float64Array, radii: Float64Array) -> BoolArray:
    """Which points ``[n]`` lie in a ball."""
    return np.concatenate([(chunk <= radii).any(1) for chunk in _squared(points, centres)])


def _squared(points: Float64Array, centres: Float64Array) -> Iterator[Float64Array]:
    """Squared distances, some rows at a time."""
    norms = np.square(centres).sum(1)
    for start in range(0, len(points), CHUNK):
        chunk = points[start : start + CHUNK]
        yield np.square(chunk).sum(1)[:, None] + norms - 2 * chunk @ centres.T
