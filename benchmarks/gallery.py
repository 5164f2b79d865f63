"""Gallery: pictures drawn for a judgement, kept in a folder, so that a run that was stopped goes on.

A file holds some pictures of one configuration and is named for all that they depend on: bundle, backend,
settings, prompts, seed, version. A picture is drawn again only if one of these has changed.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vvs import __version__
from vvs.arrays import Float64Array, IntArray
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.environment import bundle_identity
from vvs.runtime.pipeline import GeneratedImage, Pipeline
from vvs.runtime.whole_file import whole_file
from vvs.statistics import StepKind

TOGETHER = 48
"""Pictures of a file: what a stopped run may lose."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Pictures of one contender in the order of their prompts, and what they cost."""

    pixels: NDArray[np.uint8]  # [M, H, W, 3]
    compression: Float64Array  # [M] image tokens per target pass
    accepted: IntArray  # [M] tokens that verified steps accepted
    verified: IntArray  # [M] verified steps

    @property
    def mean_accepted(self) -> float:
        """Mean accepted length of all verified steps; 0 if there were none."""
        return float(self.accepted.sum() / max(1, self.verified.sum()))


class Gallery:
    """Draws, or finds what was drawn before."""

    def __init__(self, folder: Path, pipeline: Pipeline, backend: str) -> None:
        self._folder = folder
        self._pipeline = pipeline
        self._identity = [__version__, backend, bundle_identity(pipeline.bundle.manifest)["files"]]

    def draw(
        self,
        contender: Contender,
        prompts: Sequence[str],
        seed: int,
        batch: int | None,
        advance: Callable[[int], None] = lambda pictures: None,
    ) -> Drawn:
        """Pictures of all prompts, with seeds counting up from ``seed``.

        Args:
            contender: how to decode.
            prompts: at least one.
            seed: of the first picture.
            batch: pictures drawn at once; None leaves it to the pipeline.
            advance: told how many more pictures there are.

        """
        parts = []
        for start in range(0, len(prompts), TOGETHER):
            some = list(prompts[start : start + TOGETHER])
            path = self._path(contender, some, seed + start)
            found = _read(path)
            if found is None:
                found = self._draw(contender, some, seed + start, batch, advance)
                _write(path, found)
            else:
                advance(len(some))
            parts.append(found)
        names = [field.name for field in fields(Drawn)]
        return Drawn(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def _draw(
        self,
        contender: Contender,
        prompts: list[str],
        seed: int,
        batch: int | None,
        advance: Callable[[int], None],
    ) -> Drawn:
        images: list[GeneratedImage] = []
        for step in self._pipeline.stream(prompts, contender.config, seed, batch=batch):
            if step.finished:
                images += step.finished
                advance(len(step.finished))
        counted = [image.statistics for image in images]
        lengths = [one.accepted[StepKind.VERIFY] for one in counted]
        return Drawn(
            np.stack([image.pixels for image in images]),
            np.array([one.step_compression for one in counted]),
            np.array([sum(length * n for length, n in one.items()) for one in lengths], np.int64),
            np.array([one.total() for one in lengths], np.int64),
        )

    def _path(self, contender: Contender, prompts: list[str], seed: int) -> Path:
        depends = json.dumps([*self._identity, contender.config.describe(), prompts, seed], sort_keys=True)
        return self._folder / f"{hashlib.sha256(depends.encode()).hexdigest()[:24]}.npz"


def _read(path: Path) -> Drawn | None:
    """What a file holds; None if there is none or it is damaged."""
    try:
        with np.load(path) as arrays:
            return Drawn(**arrays)
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile):
        return None


def _write(path: Path, drawn: Drawn) -> None:
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **vars(drawn))
