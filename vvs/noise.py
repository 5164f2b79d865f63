"""Noise: what coupled sampling adds to logits, the same for draft and target.

Drawn by the Gumbel-max trick, a token is the argmax of its logits plus Gumbel noise. If the noise depends
on nothing but the request and the position in the image, drafter and target see the same noise and mostly
agree on the token, and what is drawn does not depend on what was drafted ("drafter-invariant speculative
decoding", Daliri, Musco, Suresh 2024, arXiv 2408.07978). Trees of several candidates draft the best ones.

The noise is a hash of key, position and token (SplitMix64), so that every backend finds the same numbers in
any order without keeping them.
"""

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import Float32Array
from vvs.uniforms import Uniforms

KEY_BITS = 53
"""Bits of a key: those that one uniform number has."""

BLOCK = 16
"""Positions that are computed at once."""

_GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class GumbelNoise:
    """Standard Gumbel numbers of one request: one for every token at every image position.

    Args:
        key: in ``[0, 2^53)``.
        vocabulary: V.

    """

    def __init__(self, key: int, vocabulary: int) -> None:
        self._state = int(_mixed(np.array([key], np.uint64))[0])
        self._vocabulary = vocabulary
        self._start = 0
        self._kept: Float32Array = np.empty((0, vocabulary), np.float32)

    @classmethod
    def drawn(cls, uniforms: Uniforms, vocabulary: int) -> "GumbelNoise":
        """Noise whose key is the next number of a stream."""
        return cls(int(uniforms.next() * 2**KEY_BITS), vocabulary)

    def row(self, position: int) -> Float32Array:
        """Noise ``[V]`` of the token at an image position, counted from 0."""
        row: Float32Array = self.rows(position, 1)[0]
        return row

    def rows(self, first: int, count: int) -> Float32Array:
        """Noise ``[count, V]`` of tokens that follow one another; not to be written to."""
        place = first - self._start
        if place < 0 or place + count > len(self._kept):
            self._start, self._kept = first, self._computed(first, max(count, BLOCK))
            place = 0
        return self._kept[place : place + count]

    def _computed(self, first: int, count: int) -> Float32Array:
        start, end = first * self._vocabulary, (first + count) * self._vocabulary
        counter = np.arange(start + 1, end + 1, dtype=np.uint64)
        bits = _mixed(counter * np.uint64(_GAMMA) + np.uint64(self._state))
        uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-KEY_BITS
        return (-np.log(-np.log(uniform))).astype(np.float32).reshape(count, self._vocabulary)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
