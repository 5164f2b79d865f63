"""Whom a drafter may be trained for: a bundle's target, a bare checkpoint, a recipe's."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from trainings import QUICK, Train, sentence

from vvs.export.bundle import read_manifest
from vvs.export.llamagen import CaptionConditioning, Target, TargetConfig
from vvs.export.origin import origin_of
from vvs.export.recipe import RANDOM, load_recipe
from vvs.manifest import MANIFEST_FILE, NOWHERE, Origin

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

Tell = Callable[[Origin], None]


@pytest.fixture
def tell(broken_bundle: Path) -> Tell:
    """Writes into the bundle's manifest where it was exported from."""

    def write(origin: Origin) -> None:
        manifest = read_manifest(broken_bundle)
        assert manifest is not None
        changed = dataclasses.replace(manifest, origin=origin)
        (broken_bundle / MANIFEST_FILE).write_text(json.dumps(changed.to_dict()))

    return write


@pytest.fixture
def told(tell: Tell, broken_bundle: Path, tiny_recipe: Path) -> Path:
    """A bundle that was exported from the tiny recipe."""
    tell(origin_of(load_recipe(tiny_recipe).survey(), None, broken_bundle))
    return broken_bundle


@pytest.fixture
def weights(tiny_recipe: Path, tmp_path: Path, tiny_models: ModelSet) -> Path:
    """A folder of weights under names that say nothing; the target says how many heads it has."""
    folder = tmp_path / "weights"
    (folder / "one").mkdir(parents=True)
    shutil.copy(tiny_recipe.parent / "target.safetensors", folder / "one" / "model.safetensors")
    (folder / "one" / "config.json").write_text(json.dumps({"num_attention_heads": 2}))
    shutil.copy(tiny_recipe.parent / "vq.safetensors", folder / "two.safetensors")
    shutil.copy(tiny_recipe.parent / "tokenizer.json", folder)
    return folder


def test_a_bundle_knows_its_target(train_for: Train, told: Path, pictures: Path, tmp_path: Path) -> None:
    result = train_for(told, pictures, "-o", tmp_path / "mine", *QUICK)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "mine" / "model.safetensors").is_file()


def test_a_bundle_of_random_weights(
    train_for: Train, tell: Tell, broken_bundle: Path, tokens: Path, tmp_path: Path
) -> None:
    recipe = Path(__file__).parents[2] / "engines" / "demo.toml"
    survey = load_recipe(recipe).survey(RANDOM)
    origin = origin_of(survey, RANDOM, broken_bundle)
    assert (origin.weights, origin.target) == (RANDOM, "")
    tell(origin)  # though this bundle is another model's
    result = train_for(broken_bundle, tokens, "-o", tmp_path / "mine", *QUICK)
    assert result.exit_code == 1
    assert "demo.toml makes the geometry Geometry(grid=16" in sentence(result)


def test_a_bundle_whose_target_cannot_be_had(
    train_for: Train, tell: Tell, told: Path, tokens: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    def says(*more: object) -> str:
        result = train_for(told, tokens, "-o", tmp_path / "mine", *QUICK, *more)
        assert result.exit_code in (1, 2)
        assert len(result.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "mine").exists()
        return sentence(result)

    assert "--grid is 6, but" in says("--grid", 6)
    target = tiny_recipe.parent / "target.safetensors"
    state = load_file(target)
    save_file({**state, "lm_head.weight": state["lm_head.weight"] + 1}, target)
    assert "is not the one" in says()
    assert "the SHA-256 of its tensors is" in says()
    target.unlink()
    assert "there is no checkpoint at" in says()
    tiny_recipe.unlink()
    assert "was exported from" in says()
    assert "tiny.toml, which is not there" in says()
    tell(NOWHERE)
    assert "does not say what it was exported from, and its graphs hold no checkpoint" in says()


@pytest.mark.parametrize("alone", [True, False])
def test_a_bare_checkpoint(
    train_for: Train, weights: Path, tokens: Path, tmp_path: Path, tiny_models: ModelSet, alone: bool
) -> None:
    place = weights
    if alone:
        place = weights / "one"
        shutil.copy(weights / "tokenizer.json", place)
    result = train_for(place, tokens, "-o", tmp_path / "mine", *QUICK, "--grid", 6, "--decode", 1)
    assert result.exit_code == 0, result.stderr
    assert "eagle: step compression" in result.stdout
    made = load_file(tmp_path / "mine" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in made.items()} == {
        name: tensor.shape for name, tensor in tiny_models.drafter.state_dict().items()
    }


def test_a_bare_checkpoint_and_pictures(
    train_for: Train, weights: Path, pictures: Path, tmp_path: Path
) -> None:
    result = train_for(weights, pictures, "-o", tmp_path / "mine", *QUICK, "--grid", 6)
    assert result.exit_code == 0, result.stderr
    shutil.copy(weights / "tokenizer.json", weights / "one")
    result = train_for(weights / "one", pictures, "-o", tmp_path / "other", *QUICK, "--grid", 6)
    assert result.exit_code == 2
    assert "one has no image tokenizer that turns pictures into tokens" in sentence(result)
    assert not (tmp_path / "other").exists()


def test_a_file_of_arrays_shows_the_grid(train_for: Train, tmp_path: Path, tiny_models: ModelSet) -> None:
    """Of a target prompted with caption states; its checkpoint is one file."""
    config = tiny_models.target.config
    target = Target(TargetConfig(config.geometry, CaptionConditioning(16), config.ffn))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps({"num_attention_heads": 2}))
    torch.save({"model": target.state_dict()}, tmp_path / "target" / "pytorch_model.bin")
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "states.npz",
        tokens=rng.integers(96, size=(6, 36)),
        hidden_states=rng.normal(size=(6, 6, 16)).astype(np.float32),
        mask=np.ones((6, 6), np.bool_),
    )
    result = train_for(tmp_path / "target", tmp_path / "states.npz", "-o", tmp_path / "mine", *QUICK)
    assert result.exit_code == 0, result.stderr
    np.save(tmp_path / "codes.npy", rng.integers(96, size=(6, 36)))
    (tmp_path / "codes.txt").write_text("a dress")
    options = ("-o", tmp_path / "other", *QUICK, "--grid", 6)
    result = train_for(tmp_path / "target", tmp_path / "codes.npy", *options)
    assert result.exit_code == 2
    assert "has no text encoder that turns captions into states" in sentence(result)


def test_going_on_from_a_drafter_in_a_folder_of_weights(
    train_for: Train, weights: Path, tokens: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    options = ("-o", tmp_path / "mine", *QUICK, "--grid", 6, "--go-on")
    result = train_for(weights, tokens, *options)
    assert result.exit_code == 2
    assert "--go-on starts from a drafter, but there is none with" in sentence(result)
    shutil.copy(tiny_recipe.parent / "drafter.safetensors", weights / "three.safetensors")
    assert train_for(weights, tokens, *options).exit_code == 0


@pytest.mark.parametrize(
    ("change", "options", "code", "says"),
    [
        ("nothing", (), 2, "does not tell how many tokens a side its images have; say it with --grid"),
        ("nothing", ("--grid", 6, "--weights", "there"), 2, "--weights is there, but"),
        ("nothing", ("--grid", 5), 2, "shape [8, 36], but it must end in 25 tokens, or in 5 x 5"),
        ("no target", ("--grid", 6), 1, "nothing else in"),
        ("two targets", ("--grid", 6), 1, "holds several of kind target (one, other)"),
        ("no heads", ("--grid", 6), 1, "no published size, so say how many heads it has"),
        ("drafter", ("--grid", 6), 1, "is to be the target, but its tensors are of kind drafter"),
        ("nowhere", (), 2, "there is no recipe, bundle or checkpoint at"),
    ],
)
def test_bare_targets_that_do_not_do(
    train_for: Train,
    weights: Path,
    tokens: Path,
    tiny_recipe: Path,
    tmp_path: Path,
    change: str,
    options: tuple[object, ...],
    code: int,
    says: str,
) -> None:
    place = weights
    match change:
        case "no target":
            shutil.rmtree(weights / "one")
        case "two targets":
            shutil.copytree(weights / "one", weights / "other")
        case "no heads":
            (weights / "one" / "config.json").unlink()
        case "drafter":
            place = tiny_recipe.parent / "drafter.safetensors"
        case "nowhere":
            place = tmp_path / "nowhere"
    result = train_for(place, tokens, "-o", tmp_path / "mine", *QUICK, *options)
    assert result.exit_code == code
    assert says in sentence(result)
    assert not (tmp_path / "mine").exists()
