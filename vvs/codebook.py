"""Codebook: the vectors behind the image tokens, and which tokens are near each other.

What LANTERN's relaxation and the similarity of draft paths are computed from. Loading it from a bundle is
the business of :mod:`vvs.runtime`.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vvs.arrays import Float64Array
from vvs.checks import check_integer
from vvs.errors import SettingsError

CHUNK_ELEMENTS = 1 << 20
"""Distances held at once while ranking neighbours: memory stays linear in the vocabulary."""


class Codebook:
    """Latents ``[V, C]`` of all tokens and, for each, its K nearest others ``[V, K]``, the nearest first.

    A token is never in its own row. K may be any number up to V - 1; :meth:`require` tells a rule that
    wants more.
    """

    def __init__(self, latents: ArrayLike, nearest: ArrayLike) -> None:
        self.latents: NDArray[Any] = np.asarray(latents)
        self.nearest: NDArray[Any] = np.asarray(nearest)
        if self.latents.ndim != 2 or self.latents.dtype.kind != "f" or not self.latents.size:
            raise SettingsError(
                f"codebook latents are {self.latents.dtype} {self.latents.shape}, but must be float [V, C]"
            )
        V = self.latents.shape[0]
        shape = self.nearest.shape
        if self.nearest.dtype.kind not in "ui" or len(shape) != 2 or shape[0] != V or shape[1] > V - 1:
            raise SettingsError(
                f"codebook neighbours are {self.nearest.dtype} {shape}, "
                f"but must be integers [{V}, K] with K <= {V - 1}"
            )
        if self.nearest.size and (self.nearest.min() < 0 or self.nearest.max() >= V):
            raise SettingsError(f"codebook neighbours must lie in 0..{V - 1}, but at least one does not")
        if (self.nearest == np.arange(V)[:, None]).any():
            raise SettingsError("a codebook entry is listed among its own neighbours, but must be left out")

    @classmethod
    def from_latents(cls, latents: ArrayLike, neighbours: int) -> "Codebook":
        """Make a codebook of ``latents`` ``[V, C]`` with each entry's ``neighbours`` nearest others."""
        return cls(latents, nearest_codes(np.asarray(latents), neighbours))

    @property
    def vocabulary(self) -> int:
        """V, number of tokens."""
        return int(self.latents.shape[0])

    @property
    def neighbours(self) -> int:
        """K, neighbours listed per token."""
        return int(self.nearest.shape[1])

    @cached_property
    def directions(self) -> Float64Array:
        """Latents scaled to length 1, ``[V, C]``; a zero vector stays zero."""
        latents = self.latents.astype(np.float64)
        length = np.linalg.norm(latents, axis=1, keepdims=True)
        directions: Float64Array = latents / np.where(length > 0, length, 1)
        return directions

    def require(self, neighbours: int) -> None:
        """Raise SettingsError unless each token lists at least ``neighbours`` others."""
        if neighbours > self.neighbours:
            raise SettingsError(
                f"{neighbours} nearest codes per token are needed, but this codebook lists {self.neighbours} "
                f"of {self.vocabulary - 1}; ask for fewer, or list more"
            )


def nearest_codes(latents: NDArray[Any], neighbours: int) -> NDArray[np.int32]:
    """Rank each token's nearest others by L2 distance, ``[V, K]``; equal distances by index.

    Works in chunks of rows, so memory grows linearly with V. Distances are summed coordinate by coordinate
    in float64: they are exactly symmetric, so ties really tie.

    Args:
        latents: ``[V, C]``.
        neighbours: K, 0 to V - 1.

    """
    V = latents.shape[0]
    check_integer("neighbours", neighbours, at_least=0)
    if neighbours > V - 1:
        raise SettingsError(f"neighbours is {neighbours}, but {V} codes have only {V - 1} others each")
    nearest = np.empty((V, neighbours), np.int32)
    if not neighbours:
        return nearest
    columns = np.ascontiguousarray(latents.T, dtype=np.float64)
    chunk = max(1, CHUNK_ELEMENTS // V)
    for start in range(0, V, chunk):
        rows = np.arange(start, min(start + chunk, V))
        distance = np.zeros((len(rows), V))
        for column in columns:
            distance += np.square(column[rows, None] - column)
        distance[np.arange(len(rows)), rows] = np.inf
        furthest = np.partition(distance, neighbours - 1, axis=1)[:, neighbours - 1]
        for row, of_row, bound in zip(rows, distance, furthest, strict=True):
            near = np.flatnonzero(of_row <= bound)
            nearest[row] = near[np.argsort(of_row[near], kind="stable")][:neighbours]
    return nearest
