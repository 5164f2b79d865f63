"""Recipes: the shipped ones, models from weights and at random, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from vvs.errors import CheckpointError, SettingsError
from vvs.export.recipe import RANDOM, load_recipe

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

ENGINES = Path(__file__).parents[2] / "engines"


@pytest.fixture
def folder(tiny_recipe: Path) -> Path:
    return tiny_recipe.parent


@pytest.mark.parametrize("path", sorted(ENGINES.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.trees


def test_models_from_weights(folder: Path, tiny_models: ModelSet) -> None:
    models = load_recipe(folder / "tiny.toml").models()
    assert models.geometry == tiny_models.geometry
    assert models.target.config == tiny_models.target.config
    assert models.tokenizer == tiny_models.tokenizer
    torch.testing.assert_close(models.drafter.state_dict(), tiny_models.drafter.state_dict())


def test_weights_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "else" / "tiny.toml"
    moved.parent.mkdir()
    moved.write_text((folder / "tiny.toml").read_text())
    assert load_recipe(moved).models(folder).geometry.layers == 2
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load_recipe(moved).models()


def test_random_weights() -> None:
    """They need no checkpoint, and are the same every time."""
    recipe = load_recipe(ENGINES / "demo.toml")
    if not (recipe.folder() / "tokenizer.json").is_file():
        pytest.skip("the demo's tokenizer is not here")
    first, second = recipe.models(RANDOM), recipe.models(RANDOM)
    assert first.geometry.layers == recipe.geometry.layers
    assert torch.equal(first.target.lm_head.weight, second.target.lm_head.weight)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("grid = 6\n", "the field 'grid' is missing"),
        (("grid = 6", 'grid = "six"'), "geometry: grid is 'six', but it must be an integer"),
        (("grid = 6", "grid = 6\nsize = 3"), "geometry: unknown field 'size'; there is grid, vocabulary"),
        (
            ('kind = "words"', 'kind = "sounds"'),
            r"conditioning\.kind is 'sounds', but it must be one of words",
        ),
        (("total = 8", "total = 80"), r"so total must lie in 1\.\.21, got 80"),
        (("k3-d2-n8", "big"), "default_tree is 'big', but the trees are: k3-d2-n8"),
        (
            ('name = "tiny"', 'name = "tiny"\nprecision = "int4"'),
            "precision is 'int4', but it must be one of",
        ),
        (
            ('name = "tiny"', 'name = "tiny"\nkeep_fp32 = ["tail"]'),
            "'tail' is to be kept in fp32, but what can be kept is",
        ),
        (('name = "tiny"', 'name = "tiny"\nfamily = "gan"'), "family is 'gan', but only llamagen is known"),
        (('examples = ["a red dress"]', "examples = [3]"), r"examples\[0\] is 3, but it must be a string"),
        (('name = "tiny"', 'name = "tiny"\npath = "x"'), "unknown field 'path'"),
        (("[weights]", "[weights"), "cannot be read"),
    ],
)
def test_mistakes(tiny_recipe: Path, tmp_path: Path, change: str | tuple[str, str], sentence: str) -> None:
    recipe = tiny_recipe.read_text()
    old, new = change if isinstance(change, tuple) else (change, "")
    assert old in recipe
    (tmp_path / "r.toml").write_text(recipe.replace(old, new))
    with pytest.raises(SettingsError, match=sentence):
        load_recipe(tmp_path / "r.toml")


def test_a_missing_recipe(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no recipe at"):
        load_recipe(tmp_path / "none.toml")


def test_weights_that_contradict_the_recipe(folder: Path) -> None:
    path = folder / "tiny.toml"
    recipe = path.read_text()
    path.write_text(recipe.replace("heads = 2", "heads = 2\nlayers = 7"))
    with pytest.raises(CheckpointError, match=r"says layers is 7, but the target .* has 2"):
        load_recipe(path).models()
    path.write_text(recipe.replace('"words"', '"class"'))
    with pytest.raises(CheckpointError, match=r"says prompts are of kind class, but .* takes words"):
        load_recipe(path).models()
    path.write_text(recipe.replace("heads = 2", ""))
    with pytest.raises(CheckpointError, match="no published size, so say how many heads"):
        load_recipe(path).models()


def test_random_weights_need_sizes(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"random weights need geometry\.vocabulary"):
        load_recipe(folder / "tiny.toml").models(RANDOM)
