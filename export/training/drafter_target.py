"""Whom a drafter is trained for: a bundle's target, a bare checkpoint, or a recipe's."""

from dataclasses import replace
from pathlib import Path

from vvs.errors import SettingsError
from vvs.export.bare_target import holds_checkpoints, survey_bare_target
from vvs.export.model_set import ModelSet
from vvs.export.origin import Source, require_same_target, source_of
from vvs.export.recipe import RANDOM, load_recipe
from vvs.export.survey import Survey
from vvs.export.training.drafter_data import grid_of
from vvs.export.training.own_drafter import WEIGHTS_FILE
from vvs.manifest import MANIFEST_FILE
from vvs.runtime.bundle import read_manifest


def load_target(
    place: Path,
    data: Path,
    out: Path,
    *,
    weights: str | None = None,
    grid: int | None = None,
    go_on: bool = False,
) -> ModelSet:
    """Load the models of a bundle, a checkpoint or a recipe; only going on needs a drafter among them.

    Args:
        place: a bundle's folder, a target's checkpoint, a folder of weights, or a recipe.
        data: what is trained on; its shape may tell the grid.
        out: where the drafter will lie; weights may be named there before there are any.
        weights: the folder of the weights, where it is another than the bundle or recipe says.
        grid: tokens a side of the images of a bare checkpoint, where the data do not tell.
        go_on: whether training starts from the drafter that is there.

    Raises:
        BundleError: a bundle that does not say what it was exported from, or whose recipe is gone.
        CheckpointError: weights are missing or do not fit, or are not those that a bundle was exported from.
        SettingsError: there is nothing at ``place``, or a setting that does not go with it.

    """
    bare = not (place / MANIFEST_FILE).is_file() and holds_checkpoints(place)
    if bare and weights is not None:
        raise SettingsError(f"--weights is {weights}, but {place} holds the weights; leave --weights out")
    if not bare and grid is not None:
        raise SettingsError(f"--grid is {grid}, but {place} says itself what the grid is; leave --grid out")
    if bare:
        survey = survey_bare_target(place, grid or grid_of(data), with_drafter=go_on)
    else:
        survey = _survey_described(place, out, weights, go_on=go_on)
    if go_on and "drafter" in survey.random_parts:
        raise SettingsError(
            f"--go-on starts from a drafter, but there is none with {place}; leave --go-on out"
        )
    return survey.models()


def _survey_described(place: Path, out: Path, weights: str | None, *, go_on: bool) -> Survey:
    """Survey what a recipe says, also where a bundle says which."""
    if not (place / MANIFEST_FILE).is_file():
        if not place.is_file():
            raise SettingsError(f"there is no recipe, bundle or checkpoint at {place}")
        return _survey_source(Source(load_recipe(place), weights), out, go_on=go_on)
    manifest = read_manifest(place)
    survey = _survey_source(source_of(place, manifest, weights), out, go_on=go_on)
    require_same_target(place, manifest, survey)
    return survey


def _survey_source(source: Source, out: Path, *, go_on: bool) -> Survey:
    """Survey a recipe's weights; it may name the drafter that is to be made, or one that is not there yet."""
    recipe, weights = source
    named = recipe.folder(weights) / recipe.weights.drafter
    unfinished = named.resolve() == out.resolve() and not (out / WEIGHTS_FILE).exists()
    if not go_on and (unfinished or not named.exists()):
        recipe = replace(recipe, weights=replace(recipe.weights, drafter=RANDOM))
    return recipe.survey(weights)
