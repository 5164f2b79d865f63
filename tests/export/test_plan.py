"""What an export would take: the shipped recipes' sizes, the size of a bundle, room on disk and in memory."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from vvs.errors import ExportError
from vvs.export import resources
from vvs.export.bundle import export_bundle
from vvs.export.footprint import footprint_of
from vvs.export.llamagen import published_ffn_width
from vvs.export.plan import count_parameters, footprint, memory, random_note, show_plan
from vvs.export.recipe import RANDOM, load_recipe
from vvs.export.resources import available_memory, in_bytes, require_disk, require_memory
from vvs.export.sizes import PUBLISHED_SIZES

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

ENGINES = Path(__file__).parents[2] / "engines"
PUBLISHED = {"b": 111e6, "l": 343e6, "xl": 775e6, "xxl": 1.4e9, "3b": 3.1e9}
LLAMAGEN = sorted(ENGINES.glob("llamagen-*.toml"))


@pytest.mark.parametrize("path", LLAMAGEN, ids=lambda path: path.stem)
def test_recipes_are_the_published_models(path: Path) -> None:
    """Down to the number of parameters; nothing is allocated for it."""
    recipe = load_recipe(path)
    survey = recipe.survey(RANDOM)
    _, kind, *size, pixels = path.stem.split("-")
    name = size[0] if size else "xl"
    published, geometry = PUBLISHED_SIZES[name.upper()], survey.target.geometry
    assert (geometry.layers, geometry.heads, geometry.hidden) == (
        published.layers,
        published.heads,
        published.hidden,
    )
    assert survey.target.ffn == published_ffn_width(geometry.hidden)
    assert geometry.grid * survey.vq.downsampling == geometry.image_size == int(pixels)
    assert survey.vq.codes == geometry.vocabulary
    assert count_parameters(survey.target) == pytest.approx(PUBLISHED[name], rel=0.01)
    assert count_parameters(survey.vq) == pytest.approx(72e6, rel=0.01)
    assert (recipe.conditioning.kind, geometry.prompt_length) == (
        ("class", 1) if kind == "c2i" else ("t5", 120)
    )
    if survey.text_encoder is not None:
        assert count_parameters(survey.text_encoder) == pytest.approx(1.22e9, rel=0.01)
    assert {"k10-d4-n58"} < {tree.name for tree in recipe.trees}


def test_every_published_model_has_a_recipe() -> None:
    c2i = {f"llamagen-c2i-{size}-{pixels}" for size in PUBLISHED for pixels in (256, 384)}
    assert {path.stem for path in LLAMAGEN} == c2i | {"llamagen-t2i-256", "llamagen-t2i-512"}


def test_the_size_of_a_bundle(tiny_models: ModelSet, tiny_bundle: Path) -> None:
    """Weights to a few percent, and to the padding of their file."""
    expected = footprint_of(tiny_models, "fp32").files
    weights = sum(count for what, count in expected.items() if what.startswith("weights"))
    assert (tiny_bundle / "weights.bin").stat().st_size == pytest.approx(weights, rel=0.05, abs=150 * 4096)
    codebook = sum(path.stat().st_size for path in tiny_bundle.glob("codebook_*.npy"))
    assert codebook == pytest.approx(expected["codebook"], abs=512)
    embeddings = (tiny_bundle / "token_embeddings.npy").stat().st_size
    assert embeddings == pytest.approx(expected["token embeddings"], abs=512)


def test_precision_halves_weights() -> None:
    survey = load_recipe(ENGINES / "llamagen-c2i-b-256.toml").survey(RANDOM)
    full, half = (footprint(survey, precision) for precision in ("fp32", "fp16"))
    assert full.files["weights of the target"] == 2 * half.files["weights of the target"]
    assert full.files["weights of decode_image"] == half.files["weights of decode_image"]
    assert memory(survey, "fp16") < memory(survey, "fp32")


def test_int8_halves_the_weights_of_products_once_more() -> None:
    survey = load_recipe(ENGINES / "llamagen-c2i-b-256.toml").survey(RANDOM)
    half, int8 = (footprint(survey, precision).files for precision in ("fp16", "int8-fp16"))
    assert half["weights of the target"] == 2 * int8["weights of the target"]
    assert half["token embeddings"] == int8["token embeddings"]
    assert (
        half["weights of the drafter"] // 2 < int8["weights of the drafter"] < half["weights of the drafter"]
    )


def test_the_plan_in_words() -> None:
    shown = io.StringIO()
    survey = load_recipe(ENGINES / "llamagen-c2i-b-256.toml").survey(RANDOM)
    show_plan(Console(file=shown, width=200), survey, "fp16", Path("somewhere"))
    text = shown.getvalue()
    for words in (
        "12 layers, 12 heads, 768 wide, FFN 2048, 16384 tokens, 16x16 tokens to 256 px, 1000 classes",
        "ds16, 16384 codes of 8",
        "To be built in fp16 at somewhere",
        "weights of the target",
        "draft trees: k10-d4-n58, k6-d4-n24, k4-d3-n12",
        "random weights: target, drafter, image tokenizer. Good for sizes and times, not for pictures",
    ):
        assert words in text


def test_notes_about_random_weights() -> None:
    assert random_note(()) == ""
    assert "Nobody has published one for this model" in random_note(("drafter",))


def test_no_room_on_disk(tiny_models: ModelSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, not even the folder above."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ExportError, match=r"will take about [\d.]+ MB, but only 1 kB are free at"):
        export_bundle(tiny_models, tmp_path / "above" / "bundle")
    assert not list(tmp_path.iterdir())
    require_disk("it", 1000, tmp_path / "above" / "bundle")


def test_no_room_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:  99 kB\nMemAvailable:  3000000 kB\nSwapFree:  1000000 kB\n")
    monkeypatch.setattr(resources, "MEMORY_INFO", info)
    assert available_memory() == 4_096_000_000
    require_memory(4_000_000_000)
    with pytest.raises(ExportError, match=r"about 24.5 GB of memory, but only 4.1 GB are available"):
        require_memory(24_500_000_000)
    monkeypatch.setattr(resources, "MEMORY_INFO", tmp_path / "none")
    require_memory(10**15)  # a system that does not tell


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (1_550_000_000, "1.55 GB"), (10**13, "1e+04 GB")],
)
def test_bytes_in_words(count: int, words: str) -> None:
    assert in_bytes(count) == words
