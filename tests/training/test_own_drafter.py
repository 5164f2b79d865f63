"""``vvs train-drafter``: from pictures or tokens to a drafter that a recipe can name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file
from trainings import QUICK, Train, sentence

from vvs.errors import SettingsError
from vvs.export.graphs import EncodePromptGraph
from vvs.export.recipe import load_recipe
from vvs.export.training.drafter_stage import FeatureMix
from vvs.export.training.own_drafter import DrafterJob, train_own_drafter
from vvs.export.training.pictures import find_pictures, tokenise
from vvs.export.training.token_examples import TokenExamples, load_examples
from vvs.export.training.trainer import TrainSettings

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet


def some_examples(models: ModelSet, count: int) -> TokenExamples:
    rng = np.random.default_rng(0)
    geometry = models.geometry
    tokens = rng.integers(geometry.vocabulary, size=(count, geometry.image_tokens))
    ids = rng.integers(2, 9, size=(count, geometry.prompt_length))
    mask = np.arange(geometry.prompt_length) < rng.integers(1, 4, size=(count, 1))
    inputs = EncodePromptGraph(models.target).inputs
    return TokenExamples(tokens, {"token_ids": ids, "mask": mask}, inputs, geometry)


def test_pictures_become_a_drafter_that_the_recipe_takes(
    train: Train, pictures: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    options = ("--batch", 2, "--held-out", 2, "--decode", 1, "--threads", 1, "--stale", 0.4)
    result = train(pictures, "-o", out, "--steps", 2, *options)
    assert result.exit_code == 0, result.stderr
    assert f"drafter: {out}" in result.stdout
    report = json.loads((out / "training.json").read_text())
    assert (report["examples"], report["held_out"], report["steps"]) == (6, 2, 2)
    for mode in ("eagle", "vvs"):
        assert report["decoding"][mode]["step_compression"] >= 1
        assert f"{mode}: step compression" in result.stdout
    assert json.loads((out / "config.json").read_text())["hidden_size"] == 32
    tiny_recipe.write_text(tiny_recipe.read_text().replace("[weights]\n", f'[weights]\ndrafter = "{out}"\n'))
    first = load_recipe(tiny_recipe).models().drafter.state_dict()
    # Again, for longer: it goes on from its state, over the tokens it kept.
    more = train(pictures, "-o", out, "--steps", 4, *options)
    assert more.exit_code == 0, more.stderr
    assert "going on from step 2 of 4" in more.stderr
    assert "tokens.npz" in " ".join(more.stderr.split())
    second = load_recipe(tiny_recipe).models().drafter.state_dict()
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert not list(out.glob("*.tmp*"))


def test_the_first_drafter_of_a_target(
    train: Train, pictures: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    (tiny_recipe.parent / "drafter.safetensors").unlink()
    options = ("--steps", 1, "--batch", 2, "--held-out", 2, "--decode", 1, "--threads", 1)
    again = train(pictures, "-o", tmp_path / "no", *options, "--go-on")
    assert again.exit_code != 0
    assert "nothing else in" in again.stderr  # the recipe names one
    result = train(pictures, "-o", tmp_path / "mine", *options)
    assert result.exit_code == 0, result.stderr
    assert "decoding 1 held-out prompts: vvs" in result.stderr
    # The recipe may name the folder all along, also while an interrupted run has left no drafter in it yet.
    text = tiny_recipe.read_text()
    tiny_recipe.write_text(text.replace("[weights]\n", '[weights]\ndrafter = "mine"\n'))
    (tmp_path / "mine" / "model.safetensors").unlink()
    resumed = train(pictures, "-o", tmp_path / "mine", *options)
    assert resumed.exit_code == 0, resumed.stderr
    assert "going on from step 1 of 1" in resumed.stderr
    shutil.rmtree(tmp_path / "mine")
    tiny_recipe.write_text(text.replace("[weights]\n", '[weights]\ndrafter = "random"\n'))
    made_up = train(pictures, "-o", tmp_path / "no", *options, "--go-on")
    assert made_up.exit_code == 2
    assert "--go-on starts from a drafter, but there is none with" in made_up.stderr
    assert not (tmp_path / "no").exists()


def test_a_drafter_of_more_layers(train: Train, tokens: Path, tiny_recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "two"
    assert train(tokens, "-o", out, *QUICK, "--layers", 2).exit_code == 0
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 2
    other = train(tokens, "-o", out, *QUICK, "--layers", 1)
    assert other.exit_code == 2
    assert "began with layers 2, but it is to go on with layers 1" in sentence(other)
    text = tiny_recipe.read_text()
    tiny_recipe.write_text(text.replace("[weights]\n", '[weights]\ndrafter = "two"\n'))
    assert load_recipe(tiny_recipe).models().drafter.config.layers == 2
    # From the drafter that is there: as it is, with another layer, and not with fewer.
    for layers, options in ((2, ()), (3, ("--layers", 3))):
        further = tmp_path / f"further-{layers}"
        assert train(tokens, "-o", further, *QUICK, "--go-on", *options).exit_code == 0
        assert json.loads((further / "config.json").read_text())["num_hidden_layers"] == layers
    fewer = train(tokens, "-o", tmp_path / "no", *QUICK, "--go-on", "--layers", 1)
    assert fewer.exit_code == 2
    assert "has 2 layers, so it cannot go on with 1" in sentence(fewer)


def test_training_brings_the_drafter_nearer_to_the_target(tiny_models: ModelSet, tmp_path: Path) -> None:
    examples = some_examples(tiny_models, 24)

    def after(steps: int) -> float:
        torch.manual_seed(0)
        job = DrafterJob(
            TrainSettings(steps=steps, batch=8, learning_rate=3e-3, warmup=5, average_decay=0.9),
            FeatureMix(),
            decoded_prompts=0,
            held_out=8,
        )
        report = train_own_drafter(tiny_models, examples, job, tmp_path / str(steps), Console(quiet=True))
        assert report["decoding"] == {}
        loss: float = report["losses"]["feature"]
        return loss

    assert after(60) < 0.8 * after(1)


def test_a_token_file_may_be_npz_or_safetensors(tiny_models: ModelSet, tmp_path: Path) -> None:
    examples = some_examples(tiny_models, 5)
    examples.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
    save_file(arrays, tmp_path / "b.safetensors")
    inputs = EncodePromptGraph(tiny_models.target).inputs
    read = [
        load_examples(tmp_path / name, inputs, tiny_models.geometry) for name in ("a.npz", "b.safetensors")
    ]
    drawn = [source.draw(3, np.random.default_rng(1)) for source in (examples, *read)]
    for other in drawn[1:]:
        assert torch.equal(other.tokens, drawn[0].tokens)
        assert all(map(torch.equal, other.conditioning, drawn[0].conditioning))


def test_pictures_are_cropped_scaled_and_encoded(tiny_models: ModelSet, pictures: Path) -> None:
    found = find_pictures(pictures)
    assert [picture.prompt for picture in found] == ["blue shirt"] * 4 + ["red dress"] * 4
    tokens = tokenise(tiny_models.vq, found, 12, None)
    assert tokens.shape == (8, 36)
    with Image.open(found[5].path) as image:
        middle = image.crop((4, 0, 16, 12))
    pixels = torch.from_numpy(np.asarray(middle, np.float32)).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        np.testing.assert_array_equal(tokens[5], tiny_models.vq.encode(pixels).flatten().numpy())


def test_a_picture_too_large_to_open_is_a_sentence(
    tiny_models: ModelSet, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow refuses more than twice as many
    with pytest.raises(SettingsError, match=r"0\.png cannot be read: Image size \(240 pixels\) exceeds"):
        tokenise(tiny_models.vq, find_pictures(pictures), 12, None)


def test_prompts_lie_beside_pictures_or_in_a_list(pictures: Path) -> None:
    folder = pictures / "red dress"
    (folder / "2.txt").write_text("a green shoe\n")
    assert find_pictures(pictures)[6].prompt == "a green shoe"
    lines = [{"file_name": "1.png", "text": "a"}, {"file_name": "0.png", "label": 7}]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert find_pictures(folder) == [(folder / "1.png", "a"), (folder / "0.png", "7")]


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("no folder", "there is no folder of pictures or token files at"),
        ("no pictures", "holds no pictures"),
        ("no prompt", "has no prompt: put it into metadata.jsonl"),
        ("unknown word", "does not know the word 'cat'"),
        ("bad line", "line 1 of"),
        ("list of bytes", "metadata.jsonl is not UTF-8 text"),
        ("caption of bytes", "0.txt is not UTF-8 text"),
        ("broken picture", "cannot be read"),
        ("too few", "8 of 8 examples are to be held out"),
    ],
)
def test_mistakes_are_sentences_and_leave_no_drafter(
    train: Train, pictures: Path, tmp_path: Path, mistake: str, says: str
) -> None:
    given, held_out = pictures, 2
    match mistake:
        case "no folder":
            given = tmp_path / "nowhere"
        case "no pictures":
            given = tmp_path / "empty"
            given.mkdir()
        case "no prompt":
            (pictures / "red dress" / "0.png").rename(pictures / "0.png")
        case "unknown word":
            (pictures / "red dress").rename(pictures / "red cat")
        case "bad line":
            (pictures / "metadata.jsonl").write_text('{"file_name": "0.png"}\n')
        case "list of bytes":
            (pictures / "metadata.jsonl").write_bytes(b"\xff\xfe{")
        case "caption of bytes":
            (pictures / "red dress" / "0.txt").write_bytes(b"caf\xe9")
        case "broken picture":
            (pictures / "red dress" / "0.png").write_bytes(b"no picture")
        case _:
            held_out = 8
    result = train(given, "-o", tmp_path / "mine", "--held-out", held_out, "--steps", 1)
    assert result.exit_code == 2
    assert says in sentence(result)
    assert not list(tmp_path.glob("mine/*.safetensors"))


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--seed", 3, "began with seed 0, but it is to go on with seed 3"),
        ("--batch", 3, "began with batch 2, but it is to go on with batch 3"),
        ("--held-out", 3, "began with held-out 2, but it is to go on with held-out 3"),
        ("--predicted", 0.5, "began with predicted 0.3, but it is to go on with predicted 0.5"),
        ("--stale", 0.4, "began with stale 0.1, but it is to go on with stale 0.4"),
        ("--steps", 1, "has 2 steps behind it, more than 1"),
    ],
)
def test_a_run_goes_on_with_what_it_began_with(
    train: Train, tokens: Path, tmp_path: Path, option: str, value: float, says: str
) -> None:
    out = tmp_path / "mine"
    begun = (tokens, "-o", out, *QUICK, "--steps", 2)
    assert train(*begun).exit_code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    result = train(*begun, option, value)
    assert result.exit_code == 2
    assert f"the run in {out} {says}" in sentence(result)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert train(*begun, "--steps", 3, "--learning-rate", 1e-4).exit_code == 0


def test_a_run_goes_on_with_the_same_data_and_target(
    train: Train, tokens: Path, pictures: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    assert train(tokens, "-o", out, *QUICK).exit_code == 0
    tokens.with_suffix(".txt").write_text("a green shoe")
    result = train(tokens, "-o", out, *QUICK)
    assert result.exit_code == 2
    assert re.search(
        "began with examples of SHA-256 [0-9a-f]+, but it is to go on with examples", sentence(result)
    )
    # Kept tokens are those of certain pictures.
    out = tmp_path / "of pictures"
    assert train(pictures, "-o", out, *QUICK).exit_code == 0
    (pictures / "red dress" / "0.txt").write_text("a green shoe")
    result = train(pictures, "-o", out, *QUICK)
    assert result.exit_code == 2
    assert "tokens.npz holds tokens of other pictures than" in sentence(result)
    (pictures / "red dress" / "0.txt").unlink()
    state = load_file(tiny_recipe.parent / "target.safetensors")
    save_file({name: tensor + 1 for name, tensor in state.items()}, tiny_recipe.parent / "target.safetensors")
    result = train(pictures, "-o", out, *QUICK)
    assert result.exit_code == 2
    assert "began with a target of SHA-256" in sentence(result)


def test_no_room_for_training(
    train: Train, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before pictures are encoded."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    result = train(pictures, "-o", tmp_path / "mine", *QUICK)
    assert result.exit_code == 1
    assert re.fullmatch(
        r"vvs: training the drafter will take about [\d.]+ kB, but only 1 kB are free at .*; "
        "free some, or choose another place",
        sentence(result),
    )
    assert not (tmp_path / "mine").exists()


def test_what_is_written_may_be_read(train: Train, pictures: Path, tmp_path: Path) -> None:
    assert train(pictures, "-o", tmp_path / "mine", *QUICK).exit_code == 0
    (tmp_path / "usual").touch()
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "mine").iterdir()}
    assert set(modes.values()) == {(tmp_path / "usual").stat().st_mode}
    assert {"model.safetensors", "tokens.npz", "drafter.train.pt", "training.json", "config.json"} == set(
        modes
    )


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"tokens": np.zeros((2, 35), np.int64)}, r"shape \[2, 35\], but must be \[n, 36\]"),
        ({"tokens": np.full((2, 36), 96)}, r"lie in 96..96, but the target's vocabulary is 0..95"),
        ({"tokens": np.zeros((2, 36), np.float32)}, "tokens are float32, but they must be integers"),
        ({"mask": np.ones((2, 5), np.bool_)}, r"mask has shape \[2, 5\], but must be \[2, 6\]"),
        ({"mask": None}, "no array 'mask'; this model's prompts need token_ids and mask"),
        ({"tokens": None}, "has no array 'tokens'"),
    ],
)
def test_token_files_that_do_not_fit(
    tiny_models: ModelSet, tmp_path: Path, changed: dict[str, np.ndarray | None], sentence: str
) -> None:
    arrays = {
        "tokens": np.zeros((2, 36), np.int64),
        "token_ids": np.zeros((2, 6), np.int64),
        "mask": np.ones((2, 6), np.bool_),
    }
    kept = {name: array for name, array in (arrays | changed).items() if array is not None}
    np.savez(tmp_path / "t.npz", **kept)
    inputs = EncodePromptGraph(tiny_models.target).inputs
    with pytest.raises(SettingsError, match=sentence):
        load_examples(tmp_path / "t.npz", inputs, tiny_models.geometry)
    (tmp_path / "t.npz").write_bytes(b"PK damaged")
    with pytest.raises(SettingsError, match="cannot be read"):
        load_examples(tmp_path / "t.npz", inputs, tiny_models.geometry)
