"""Evaluation: what each mode's pictures are worth, on the same prompts and seeds.

Every figure that is reported comes with what it would be with other pictures: a bootstrap interval over the
pictures. Differences to the baseline are formed prompt by prompt. All modes have the same number of pictures,
as Fréchet distances of different numbers cannot be compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import BoolArray
from vvs.benchmarks.bootstrap import Estimate, mean
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.exam import Exam
from vvs.benchmarks.frechet import FrechetDistance, FrechetReference
from vvs.benchmarks.gallery import Drawn, Gallery
from vvs.benchmarks.judge import Judgement
from vvs.benchmarks.neighbourhoods import NEIGHBOURS, PrecisionRecall, precision_recall
from vvs.errors import SettingsError

COUNT = 1000
RESAMPLES = 1000
SWEEP = (
    "ar",
    "eagle",
    "lantern acceptance=lantern:k=8,delta=0.05",
    "lantern acceptance=lantern:k=8,delta=0.2",
    "vvs",
    "vvs policy=uniform:2",
    "vvs policy=uniform:3",
    "vvs policy=uniform:4",
    "vvs policy=uniform:2 acceptance=lantern:k=8,delta=0.05",
    "vvs policy=uniform:2 acceptance=lantern:k=8,delta=0.2",
)
"""What is judged unless something else is asked for; the first is the baseline."""


@dataclass(frozen=True)
class EvaluationSettings:
    """How much is drawn and how."""

    count: int = COUNT
    """Pictures per mode."""
    seed: int = 0
    """Of the first picture."""
    batch: int | None = None
    """Pictures drawn at once; None leaves it to the pipeline."""
    resamples: int = RESAMPLES
    """Of the Fréchet distance's interval; 0 gives none."""

    def __post_init__(self) -> None:
        least = {"count": NEIGHBOURS + 1, "seed": 0, "resamples": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value < lowest:
                raise SettingsError(f"{name} is {value}, but it must be at least {lowest}")


@dataclass(frozen=True, eq=False)
class Marks:
    """What a judge made of one set of pictures."""

    score: Estimate
    """Share of pictures that show what was asked for."""
    colour: float
    garment: float
    unseen: float
    """The score on prompts of a kind that training never saw; NaN if there are none."""
    frechet: FrechetDistance
    neighbourhoods: PrecisionRecall


@dataclass(frozen=True, eq=False)
class ModeQuality:
    """One mode: what it saves and what its pictures are worth."""

    contender: Contender
    compression: Estimate
    """Image tokens per target pass."""
    accepted: float
    """Mean accepted length of verified steps."""
    marks: Marks
    gap: Estimate
    """Score less the baseline's, in shares, prompt by prompt."""
    pixels: NDArray[np.uint8]  # [M, H, W, 3]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All modes, the baseline first."""

    settings: EvaluationSettings
    features: int
    """F, of the features that carry distances and neighbourhoods."""
    modes: tuple[ModeQuality, ...]
    perfect: Marks | None
    """What as many other real pictures get."""
    prompts: tuple[str, ...]


def evaluate(
    contenders: Sequence[Contender],
    exam: Exam,
    gallery: Gallery,
    settings: EvaluationSettings,
    advance: Callable[[str, int], None] = lambda label, pictures: None,
) -> Evaluation:
    """Draw every prompt in every mode and judge.

    Args:
        contenders: at least one; the first is the baseline.
        exam: ``settings.count`` prompts and their judge.
        gallery: draws, or finds what was drawn before.
        settings: how.
        advance: told a contender's label and how many more of its pictures there are.

    """
    reference = FrechetReference(exam.reference)

    def marks(judged: Judgement) -> Marks:
        return _marks(judged, exam, reference, settings.resamples)

    modes: list[ModeQuality] = []
    baseline: BoolArray | None = None
    for contender in contenders:
        drawn = gallery.draw(
            contender, exam.prompts, settings.seed, settings.batch, partial(advance, contender.label)
        )
        judged = exam.judge(drawn.pixels)
        baseline = judged.both_right if baseline is None else baseline
        modes.append(_mode(contender, drawn, judged.both_right, baseline, marks(judged)))
    perfect = marks(exam.perfect) if exam.perfect is not None else None
    return Evaluation(settings, exam.reference.shape[1], tuple(modes), perfect, tuple(exam.prompts))


def _mode(
    contender: Contender, drawn: Drawn, right: BoolArray, baseline: BoolArray, marks: Marks
) -> ModeQuality:
    gap = mean(right.astype(np.float64) - baseline.astype(np.float64))
    return ModeQuality(contender, mean(drawn.compression), drawn.mean_accepted, marks, gap, drawn.pixels)


def _marks(judged: Judgement, exam: Exam, reference: FrechetReference, resamples: int) -> Marks:
    right, unseen = judged.both_right, judged.both_right[exam.held_out]
    return Marks(
        score=mean(right.astype(np.float64)),
        colour=float(judged.colour_right.mean()),
        garment=float(judged.garment_right.mean()),
        unseen=float(unseen.mean()) if unseen.size else float("nan"),
        frechet=reference.estimate(judged.features, resamples),
        neighbourhoods=precision_recall(judged.features, exam.reference),
    )
