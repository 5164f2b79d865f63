"""Divergence: where two runs that should emit the same tokens first differ, and whether that was a tie.

Greedy decoding is deterministic, and drafting must not change it. Where two runs differ nevertheless, the
target's logits after their common tokens tell why: two tokens whose logits are closer than the arithmetic's
noise are a tie, which another order of summation may break differently; anything else is a defect.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from vvs.arrays import Float32Array, IntArray
from vvs.engine import Conditioning, Engine, TargetRows
from vvs.precision import PRECISIONS

TIE = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 4e-1}
"""Logits that are closer than this, relative to the largest, are a tie, by what they are computed in."""


@dataclass(frozen=True)
class Divergence:
    """The first token that differs."""

    position: int
    """Of the token among the image's."""
    ours: int
    theirs: int
    gap: float
    """Difference of the two tokens' logits after the common tokens."""
    largest: float
    """Largest logit there, by magnitude."""
    tie: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dict(vars(self))


def first_difference(ours: IntArray, theirs: IntArray) -> int | None:
    """Index of the first of M tokens that differs."""
    different = np.flatnonzero(ours != theirs)
    return int(different[0]) if different.size else None


def logits_after(
    engine: Engine, conditioning: Conditioning, tokens: Sequence[int], cfg_scale: float
) -> Float32Array:
    """Guided logits ``[V]`` that follow a prompt and ``tokens``, in one target pass over them."""
    scale, P = np.array([cfg_scale], np.float32), engine.geometry.prompt_length
    with closing(engine.open(1)) as session:
        first = session.prefill(conditioning, scale)
        if not tokens:
            last: Float32Array = first.logits[0, -1]
            return last
        T = len(tokens)
        rows = TargetRows(
            tokens=np.array([tokens], np.int64),
            positions=P + np.arange(T)[None],
            ancestors=np.tri(T, dtype=np.bool_)[None],
            past_length=np.array([P]),
            cfg_scale=scale,
        )
        after: Float32Array = session.verify(np.zeros(1, np.int64), rows).logits[0, -1]
        return after


def explain(
    engine: Engine,
    conditioning: Mapping[str, Any],
    ours: IntArray,
    theirs: IntArray,
    cfg_scale: float,
    precision: str,
) -> Divergence | None:
    """The first difference of two greedy runs ``[M]`` of one prompt, or None."""
    position = first_difference(ours, theirs)
    if position is None:
        return None
    logits = logits_after(engine, conditioning, ours[:position].tolist(), cfg_scale)
    first, second = int(ours[position]), int(theirs[position])
    gap, largest = float(logits[first] - logits[second]), float(np.abs(logits).max())
    return Divergence(
        position,
        first,
        second,
        gap,
        largest,
        abs(gap) <= TIE[PRECISIONS[precision].compute] * max(1.0, largest),
    )
