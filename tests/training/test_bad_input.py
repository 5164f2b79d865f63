"""Wrong weights, and machines that are too small: one sentence, an exit code, and nothing half-written.

Both commands that read checkpoints say the same.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from trainings import QUICK, sentence
from typer.testing import CliRunner

from vvs.cli.app import app
from vvs.export import resources

if TYPE_CHECKING:
    from vvs.export.layouts import State

Change = Callable[[Path], object]
COMMANDS = ("export", "train-drafter")


def other_tensors(part: str, change: Callable[[State], State]) -> Change:
    """Replaces the tensors of a part by what ``change`` makes of them."""

    def apply(folder: Path) -> None:
        file = folder / f"{part}.safetensors"
        save_file(change(load_file(file)), file)

    return apply


def without(part: str, name: str) -> Change:
    return other_tensors(part, lambda state: {key: value for key, value in state.items() if key != name})


def with_tensor(part: str, name: str, *shape: int) -> Change:
    return other_tensors(part, lambda state: state | {name: torch.zeros(shape)})


def truncated(part: str) -> Change:
    def apply(folder: Path) -> None:
        file = folder / f"{part}.safetensors"
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return apply


def foreign(name: str) -> Change:
    return other_tensors("target", lambda _: {name: torch.zeros(1)})


def family(folder: Path) -> None:
    recipe = folder / "tiny.toml"
    recipe.write_text(recipe.read_text().replace('name = "tiny"', 'name = "tiny"\nfamily = "anole"'))


BAD_WEIGHTS = [
    ("family of the recipe", family, 2, "family is 'anole', but only llamagen is known"),
    (
        "family",
        foreign("model.vqmodel.encoder.x"),
        1,
        "target.safetensors is a Chameleon model, but",
    ),
    ("family", foreign("some.weight"), 1, "of no known kind (its first tensors are some.weight)"),
    ("missing", without("target", "lm_head.weight"), 1, "target.safetensors lacks lm_head.weight"),
    (
        "missing",
        without("target", "model.layers.0.mlp.gate_proj.weight"),
        1,
        "lacks model.layers.0.mlp.gate_proj",
    ),
    ("missing", without("drafter", "fc.weight"), 1, "drafter.safetensors lacks fc.weight"),
    ("missing", without("vq", "decoder.conv_in.bias"), 1, "vq.safetensors lacks decoder.conv_in.bias"),
    (
        "extra",
        with_tensor("target", "more", 2),
        1,
        "target.safetensors has more, which the model",
    ),
    (
        "extra",
        with_tensor("drafter", "more", 2),
        1,
        "drafter.safetensors has more, which the model",
    ),
    ("extra", with_tensor("vq", "more", 2), 1, "vq.safetensors has more, which the model"),
    (
        "width",
        with_tensor("drafter", "embed_tokens.weight", 96, 48),
        1,
        "drafter.safetensors is 48 wide (embed_tokens.weight is [96, 48]), but the target is 32 wide",
    ),
    (
        "shape",
        with_tensor("drafter", "fc.weight", 32, 65),
        1,
        "fc.weight is [32, 65], but the model's is [32, 64]",
    ),
    (
        "codebook",
        with_tensor("vq", "quantize.embedding.weight", 64, 8),
        1,
        "vq.safetensors has 64 codes (quantize.embedding.weight), but the target",
    ),
    ("truncated", truncated("target"), 1, "target.safetensors is damaged or truncated"),
    ("truncated", truncated("drafter"), 1, "drafter.safetensors is damaged or truncated"),
    ("truncated", truncated("vq"), 1, "vq.safetensors is damaged or truncated"),
]
"""What is wrong, the change that makes it so, the exit code, and what is said."""


class Place:
    """The folders of both commands; the export's holds an older bundle."""

    def __init__(self, recipe: Path, bundle: Path, tokens: Path) -> None:
        self._folder = recipe.parent
        self._commands = {
            "export": ("export", recipe, "-o", bundle),
            "train-drafter": ("train-drafter", recipe, tokens, "-o", self._folder / "mine", *QUICK),
        }

    def refuses(self, command: str, code: int) -> str:
        """The one sentence of a command that fails and changes nothing."""
        before = self._contents()
        result = CliRunner().invoke(app, list(map(str, self._commands[command])))
        assert result.exit_code == code, result.output
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        assert self._contents() == before
        return sentence(result)

    def _contents(self) -> dict[Path, bytes]:
        return {p: p.read_bytes() if p.is_file() else b"" for p in self._folder.rglob("*")}


@pytest.fixture
def place(tiny_recipe: Path, broken_bundle: Path, tokens: Path) -> Place:
    pytest.importorskip("onnxscript")
    return Place(tiny_recipe, broken_bundle, tokens)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("change", "code", "says"), [row[1:] for row in BAD_WEIGHTS], ids=[row[0] for row in BAD_WEIGHTS]
)
def test_bad_weights(
    place: Place, tiny_recipe: Path, command: str, change: Change, code: int, says: str
) -> None:
    change(tiny_recipe.parent)
    assert says in place.refuses(command, code)


def test_a_damaged_file_is_named_where_nothing_else_does(place: Place, tiny_recipe: Path) -> None:
    """It has another name than the recipe says, and something else that cannot be read lies beside it."""
    truncated("target")(tiny_recipe.parent)
    (tiny_recipe.parent / "target.safetensors").rename(tiny_recipe.parent / "zz.safetensors")
    (tiny_recipe.parent / "a.bin").write_bytes(b"no checkpoint")
    said = place.refuses("export", 1)
    assert "nothing else in" in said
    assert "zz.safetensors is damaged or truncated" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_not_enough_disk(place: Place, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=20_000))
    what = {"export": "the bundle", "train-drafter": "training the drafter"}[command]
    assert re.search(
        rf"{what} will take about [\d.]+ [kM]B, but only 20 kB are free at .*; free some, or choose another",
        place.refuses(command, 1),
    )


def test_not_enough_memory(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable:  300000 kB\nSwapFree:  0 kB\n")
    monkeypatch.setattr(resources, "MEMORY_INFO", tmp_path / "meminfo")
    assert re.search(
        r"exporting takes about [\d.]+ GB of memory, but only 307 MB are available; --ignore-memory tries it",
        place.refuses("export", 1),
    )


@pytest.mark.parametrize("save", ["torch.save", "vvs.export.training.weights.save_file"])
def test_a_disk_that_fills_up_meanwhile(
    tokens: Path, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: str
) -> None:
    """Only what had been written whole stays."""

    def full(_state: object, file: Path) -> None:
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(save, full)
    out = tmp_path / "mine"
    arguments = ["train-drafter", tiny_recipe, tokens, "-o", out, *QUICK]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 1
    assert "no space left on device" in sentence(result)
    whole = {"config.json", "drafter.train.pt"} if save != "torch.save" else set()
    assert {path.name for path in out.iterdir()} == whole
