"""Exam: the same prompts for every mode, and a judge of the pictures they gave."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import BoolArray, Float64Array, IntArray
from vvs.benchmarks.judge import Judge, Judgement, asked, real_pictures
from vvs.export.training.garments import HELD_OUT_PAIRS

OTHER_PHOTOGRAPHS = 12
"""Seed of the photographs that show what a perfect model would get."""


class Exam(Protocol):
    """Prompts, a judge, and what pictures are compared to."""

    @property
    def prompts(self) -> Sequence[str]:
        """M prompts."""
        ...

    @property
    def held_out(self) -> BoolArray:
        """Prompts ``[M]`` of a kind that training never saw."""
        ...

    @property
    def reference(self) -> Float64Array:
        """Features ``[M, F]`` of real pictures."""
        ...

    @property
    def perfect(self) -> Judgement | None:
        """What the judge makes of M other real pictures; None if there are none."""
        ...

    def judge(self, pixels: NDArray[np.uint8]) -> Judgement:
        """Judge the pictures ``[M, H, W, 3]`` of the prompts, in their order."""
        ...


@dataclass(frozen=True, eq=False)
class DemoExam:
    """Of the demo model: coloured garments, judged by the tracked classifier."""

    prompts: Sequence[str]
    held_out: BoolArray
    reference: Float64Array
    perfect: Judgement | None
    _judge: Judge
    _colours: IntArray
    _garments: IntArray

    @classmethod
    def of(cls, weights: Path, count: int) -> "DemoExam":
        """Set ``count`` questions.

        Raises:
            CheckpointError: the folder ``weights`` lacks the classifier.
            VvsError: Fashion-MNIST is not there.

        """
        judge = Judge(weights)
        prompts, colours, garments = asked(count)
        pairs = zip(colours.tolist(), garments.tolist(), strict=True)
        reference = judge.judge(real_pictures(colours, garments), colours, garments)
        others = real_pictures(colours, garments, OTHER_PHOTOGRAPHS)
        return cls(
            prompts,
            np.array([pair in HELD_OUT_PAIRS for pair in pairs]),
            reference.features,
            judge.judge(others, colours, garments),
            judge,
            colours,
            garments,
        )

    def judge(self, pixels: NDArray[np.uint8]) -> Judgement:
        """Judge the pictures ``[M, 32, 32, 3]`` of the prompts."""
        return self._judge.judge(pixels, self._colours, self._garments)
