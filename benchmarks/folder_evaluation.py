"""Folder evaluation: FID, precision and recall, CLIP score and HPSv2 of folders of pictures.

What cannot be measured is said in a sentence. If the user asked for it, that is an error, before any picture
is looked at.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np

from vvs.benchmarks.bootstrap import Estimate, mean
from vvs.benchmarks.frechet import FrechetDistance, FrechetReference
from vvs.benchmarks.instruments import HPS_MODEL, INCEPTION_LAYER, Advance, Clip, Inception
from vvs.benchmarks.neighbourhoods import NEIGHBOURS, PrecisionRecall, precision_recall
from vvs.benchmarks.picture_folder import PictureFile, captions_of, list_pictures
from vvs.errors import SettingsError

RESAMPLES = 100
"""Each takes seconds with 2,048 features."""
PERCENT = 100.0
"""CLIP score and HPSv2 are reported as 100 times the cosine."""


class Metric(StrEnum):
    """What can be measured."""

    FID = "fid"
    PRECISION_RECALL = "precision-recall"
    CLIP = "clip"
    HPS = "hps"


OF_FEATURES = (Metric.FID, Metric.PRECISION_RECALL)
OF_CAPTIONS = (Metric.CLIP, Metric.HPS)


@dataclass(frozen=True)
class FolderSettings:
    """What to measure and with what."""

    images: tuple[Path, ...]
    """Folders, one for each mode or model."""
    reference: Path | None = None
    """Folder of real pictures."""
    prompts: tuple[str, ...] | None = None
    """Captions of every folder's pictures, by the order of their names; None: they are in the folders."""
    inception: Path | None = None
    clip: Path | None = None
    clip_model: str | None = None
    hps: Path | None = None
    metrics: frozenset[Metric] = frozenset()
    """Asked for by name; empty: whatever can be measured."""
    resamples: int = RESAMPLES
    """Of the FID's interval; 0 gives none."""

    def __post_init__(self) -> None:
        if not self.images:
            raise SettingsError("no folder of pictures is given; give at least one")
        if self.resamples < 0:
            raise SettingsError(f"resamples is {self.resamples}, but it must be at least 0")

    @property
    def asked(self) -> frozenset[Metric]:
        """What was asked for by name, or by giving weights for it."""
        given = {Metric.FID: self.inception, Metric.CLIP: self.clip, Metric.HPS: self.hps}
        return self.metrics | {metric for metric, weights in given.items() if weights is not None}

    @property
    def wanted(self) -> tuple[Metric, ...]:
        """What is tried."""
        return tuple(metric for metric in Metric if not self.metrics or metric in self.asked)


@dataclass(frozen=True)
class FolderQuality:
    """One folder; what was not measured is None."""

    folder: Path
    pictures: int
    fid: FrechetDistance | None = None
    neighbourhoods: PrecisionRecall | None = None
    clip: Estimate | None = None
    """Mean of 100 times the cosine, negative ones counted as 0 (Hessel et al. 2021, without its factor)."""
    hps: Estimate | None = None
    """Mean of 100 times the cosine (Wu et al. 2023)."""


@dataclass(frozen=True)
class FolderEvaluation:
    """All folders."""

    settings: FolderSettings
    reference_pictures: int | None
    folders: tuple[FolderQuality, ...]
    missing: Mapping[Metric, str]
    """Sentences about what was not measured."""


@dataclass
class _Instruments:
    """What is there, and why the rest is not."""

    inception: Inception | None = None
    clip: Clip | None = None
    hps: Clip | None = None
    missing: dict[Metric, str] = field(default_factory=dict)


def evaluate_folders(
    settings: FolderSettings, show: Callable[[str, int], Advance] = lambda what, total: lambda n: None
) -> FolderEvaluation:
    """Measure what can be measured.

    Args:
        settings: what and with what.
        show: begins a line of progress, so and so many pictures long, and returns what moves it.

    Raises:
        SettingsError: nothing can be measured, or not what was asked for; a folder or a picture is bad.

    """
    folders = [(path, list_pictures(path, settings.prompts)) for path in settings.images]
    reference = list_pictures(settings.reference) if settings.reference is not None else None
    instruments = _open(settings, [files for _, files in folders], reference)
    if not any((instruments.inception, instruments.clip, instruments.hps)):
        raise SettingsError(f"nothing can be measured: {next(iter(instruments.missing.values()))}")
    done: list[FolderQuality] = []
    of_reference = None
    if instruments.inception is not None and reference is not None:
        of_reference = instruments.inception.features(reference, show("reference", len(reference)))
    target = FrechetReference(of_reference) if of_reference is not None else None
    for path, files in folders:
        fid, near = None, None
        if instruments.inception is not None and target is not None and of_reference is not None:
            features = instruments.inception.features(files, show(f"{path.name}: Inception", len(files)))
            if Metric.FID in settings.wanted:
                fid = target.estimate(features, settings.resamples)
            if Metric.PRECISION_RECALL in settings.wanted:
                near = precision_recall(features, of_reference)
        clip = _score(instruments.clip, files, show, f"{path.name}: CLIP", 0.0)
        hps = _score(instruments.hps, files, show, f"{path.name}: HPSv2", -1.0)
        done.append(FolderQuality(path, len(files), fid, near, clip, hps))
    return FolderEvaluation(
        settings, len(reference) if reference is not None else None, tuple(done), instruments.missing
    )


def sentences(evaluation: FolderEvaluation) -> list[str]:
    """What a reader must know about the figures."""
    said = list(evaluation.missing.values())
    if any(folder.fid is not None for folder in evaluation.folders):
        counts = sorted({folder.pictures for folder in evaluation.folders})
        said.append(
            f"FID, precision and recall are of InceptionV3's {INCEPTION_LAYER} features against "
            f"{evaluation.reference_pictures} reference pictures"
        )
        if len(counts) > 1:
            said.append(
                f"the folders hold {' and '.join(map(str, counts))} pictures: FIDs of different numbers of "
                "pictures cannot be compared"
            )
        if counts[0] <= int(INCEPTION_LAYER):
            said.append(
                f"{counts[0]} pictures are too few for a covariance of {INCEPTION_LAYER} features: "
                "such a FID says little"
            )
    return said


def _open(
    settings: FolderSettings,
    folders: Sequence[Sequence[PictureFile]],
    reference: Sequence[PictureFile] | None,
) -> _Instruments:
    """Open what is needed; what fails is missing, or an error if it was asked for."""
    found = _Instruments()

    def attempt(metrics: Sequence[Metric], step: Callable[[], None]) -> None:
        wanted = [metric for metric in metrics if metric in settings.wanted]
        if not wanted:
            return
        try:
            step()
        except SettingsError as error:
            if settings.asked.intersection(wanted):
                raise
            names = " and ".join(wanted)
            found.missing |= dict.fromkeys(wanted, f"not measured: {names}: {error}")

    def open_inception() -> None:
        _check_counts([*folders, *([reference] if reference is not None else [])])
        if reference is None:
            raise SettingsError("a reference is needed; give a folder of real pictures with --reference")
        if settings.inception is None:
            raise SettingsError(
                "InceptionV3's weights are needed; torch-fidelity publishes them as "
                "weights-inception-2015-12-05-6726825d.pth; say with --inception where they lie"
            )
        found.inception = Inception(settings.inception)

    def open_clip() -> None:
        if settings.clip is None:
            raise SettingsError(
                "the weights of a CLIP model are needed, as open_clip's models are published "
                "(laion/CLIP-ViT-B-32-laion2B-s34B-b79K and others); say with --clip where they lie"
            )
        _check_captions(folders)
        found.clip = Clip(settings.clip, settings.clip_model)

    def open_hps() -> None:
        if settings.hps is None:
            raise SettingsError(
                "HPSv2's weights are needed; xswu/HPSv2 publishes them as HPS_v2.1_compressed.pt; "
                "say with --hps where they lie"
            )
        _check_captions(folders)
        found.hps = Clip(settings.hps, HPS_MODEL)

    attempt(OF_FEATURES, open_inception)
    attempt(OF_CAPTIONS[:1], open_clip)
    attempt(OF_CAPTIONS[1:], open_hps)
    return found


def _check_counts(folders: Sequence[Sequence[PictureFile]]) -> None:
    for files in folders:
        if len(files) <= NEIGHBOURS:
            raise SettingsError(
                f"the folder {files[0].path.parent} holds {len(files)} pictures, "
                f"but FID, precision and recall need at least {NEIGHBOURS + 1}, and thousands to say much"
            )


def _check_captions(folders: Sequence[Sequence[PictureFile]]) -> None:
    for files in folders:
        captions_of(files)


def _score(
    model: Clip | None,
    files: Sequence[PictureFile],
    show: Callable[[str, int], Advance],
    what: str,
    least: float,
) -> Estimate | None:
    if model is None:
        return None
    return mean(PERCENT * np.maximum(model.cosines(files, show(what, len(files))), least))
