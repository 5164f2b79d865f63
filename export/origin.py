"""Origin: which recipe and weights a bundle was exported from, and the way back to them.

A bundle's graphs hold fused, folded and perhaps rounded weights, and no image encoder, so whoever trains for
its target reads the checkpoint; the SHA-256 of its tensors makes sure that it is the same target.
"""

import os
from pathlib import Path
from typing import NamedTuple

from vvs.errors import BundleError, CheckpointError
from vvs.export.layouts import Kind
from vvs.export.recipe import RANDOM, Recipe, load_recipe
from vvs.export.survey import Survey
from vvs.manifest import Manifest, Origin

SHOWN = 12
"""Digits of a SHA-256 in messages."""


class Source(NamedTuple):
    """A recipe, and the weights that are to be taken for it."""

    recipe: Recipe
    weights: str | None
    """A folder, or ``random``; None is what the recipe says."""


def origin_of(survey: Survey, weights: str | None, place: Path) -> Origin:
    """What the manifest of a bundle at ``place`` says of its origin.

    Args:
        survey: what is exported.
        weights: as they were given in place of the recipe's own.
        place: the bundle's folder.

    """
    recipe, target = survey.recipe, survey.checkpoints.get(Kind.TARGET)
    folder = RANDOM if weights == RANDOM else _relative(recipe.folder(weights), place)
    return Origin(_relative(recipe.path, place), folder, target.sha256 if target else "")


def _relative(path: Path, place: Path) -> str:
    return Path(os.path.relpath(path.resolve(), place.resolve())).as_posix()


def source_of(bundle: Path, manifest: Manifest, weights: str | None = None) -> Source:
    """The recipe and weights that a bundle was exported from; ``weights`` stand in for the latter.

    Raises:
        BundleError: the bundle does not say, or its recipe is not there.

    """
    said = manifest.origin
    if not said.recipe:
        raise BundleError(
            f"{bundle} does not say what it was exported from, and its graphs hold no checkpoint; "
            "export it again with `vvs export`, or give its recipe or checkpoint"
        )
    recipe = bundle / said.recipe
    if not recipe.is_file():
        raise BundleError(
            f"{bundle} was exported from {recipe}, which is not there; give its recipe or checkpoint"
        )
    kept = said.weights if said.weights == RANDOM else str(bundle / said.weights)
    return Source(load_recipe(recipe), weights or kept)


def require_same_target(bundle: Path, manifest: Manifest, survey: Survey) -> None:
    """Raise CheckpointError if a survey's target is not the one that a bundle was exported from."""
    found = survey.checkpoints.get(Kind.TARGET)
    sha256, said = found.sha256 if found else "", manifest.origin.target
    if sha256 != said:
        what = found.what if found else "a random target"
        raise CheckpointError(
            f"{what} is not the one {bundle} was exported from: the SHA-256 of its tensors is "
            f"{sha256[:SHOWN] or 'none'}, the exported one's was {said[:SHOWN] or 'none'}; export again"
        )
    if survey.target.geometry != manifest.geometry:
        raise CheckpointError(
            f"{survey.recipe.path} makes the geometry {survey.target.geometry}, "
            f"but {bundle} was exported with {manifest.geometry}; export again"
        )
