"""Uniform numbers: the one stream per request that every random decision consumes strictly in order.

Sampling a token takes one number, so does checking a drafted token, so does choosing an unverified path.
Temperature 0 takes none. Two backends that compute the same logits therefore emit the same tokens.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from vvs.arrays import Float64Array
from vvs.checks import check_integer
from vvs.errors import SettingsError, VvsError


class Uniforms(Protocol):
    """A stream of numbers in [0, 1)."""

    @property
    def used(self) -> int:
        """Numbers consumed so far."""
        ...

    def next(self) -> float:
        """Return the next number and move on."""
        ...

    def take(self, count: int) -> Float64Array:
        """Return the next ``count`` numbers, or all that are left of a stream that ends, and move on."""
        ...


class UniformStream:
    """Numbers from numpy's PCG64, seeded."""

    def __init__(self, seed: int) -> None:
        check_integer("seed", seed, at_least=0)
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._used = 0

    @property
    def used(self) -> int:
        """Numbers consumed so far."""
        return self._used

    def next(self) -> float:
        """Return the next number in [0, 1)."""
        self._used += 1
        return self._generator.random()

    def take(self, count: int) -> Float64Array:
        """Return the next ``count`` numbers."""
        self._used += count
        return self._generator.random(count)


class RecordedUniforms:
    """Numbers recorded in an earlier run, for replaying it."""

    def __init__(self, values: Iterable[float]) -> None:
        self._values = [float(value) for value in values]
        self._used = 0
        if any(not 0 <= value < 1 for value in self._values):
            raise SettingsError("recorded uniforms must lie in [0, 1), but at least one of them does not")

    @property
    def used(self) -> int:
        """Numbers consumed so far."""
        return self._used

    @property
    def remaining(self) -> int:
        """Recorded numbers that have not been consumed."""
        return len(self._values) - self._used

    def next(self) -> float:
        """Return the next recorded number; raises VvsError when all have been consumed."""
        if not self.remaining:
            raise VvsError(
                f"all {len(self._values)} recorded uniforms are used up: "
                "this run takes other decisions than the one that was recorded"
            )
        self._used += 1
        return self._values[self._used - 1]

    def take(self, count: int) -> Float64Array:
        """Return the next ``count`` recorded numbers, or all that are left."""
        taken = self._values[self._used : self._used + count]
        self._used += len(taken)
        return np.array(taken, np.float64)
