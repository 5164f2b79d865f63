"""Bundles that are prompted with captions and with classes, from a recipe to pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from vvs.errors import PromptError
from vvs.export.bundle import export_bundle
from vvs.export.recipe import RANDOM, load_recipe
from vvs.runtime.pipeline import Pipeline

RECIPE = """
name = "prompted"

[geometry]
grid = 4
vocabulary = 96
code_dim = 8
prompt_length = {prompt_length}
layers = 1
heads = 2
head_dim = 8
hidden = 16
image_size = 8
ffn = 32

[conditioning]
{conditioning}

[[trees]]
k = 2
depth = 2
total = 4

[vq]
codes = 96
channels = 32
channel_multipliers = [1, 1]
residual_blocks = 1
latent_channels = 32

[text_encoder]
vocabulary = 90
hidden = 24
layers = 1
heads = 2
head_dim = 4
ffn = 16
"""
T5 = (12, 'kind = "t5"\ncaption_dim = 24')
CLASS = (1, 'kind = "class"\nclasses = 1000\nclass_names = "imagenet"')


@pytest.mark.parametrize(
    ("kind", "prompts", "refused"),
    [
        (T5, ["A <b>red</b> dress, and many more words than fit", "a cat"], "http://example.com"),
        (CLASS, ["goldfish", 7], "crane"),
    ],
    ids=["captions", "classes"],
)
def test_from_recipe_to_pixels(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: tuple[int, str],
    prompts: list[str | int],
    refused: str,
) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(RECIPE.format(prompt_length=kind[0], conditioning=kind[1]))
    # Kept in pytest's cache, so only a first run pays for tracing.
    place = request.config.cache.mkdir("vvs") / f"prompted-{kind[0]}"
    export_bundle(load_recipe(recipe).models(RANDOM), place)
    pipeline = Pipeline.from_bundle(place, threads=1)
    assert pipeline.bundle.manifest.random_parts[0] == "target"
    pictures = {mode: pipeline.generate(prompts, mode, seeds=[1, 2]) for mode in ("ar", "vvs")}
    for generation in pictures.values():
        assert generation.pixels.shape == (2, 8, 8, 3)
    alone = pipeline.generate(prompts[1:], "ar", seeds=[2])
    np.testing.assert_array_equal(alone.tokens[0], pictures["ar"].tokens[1])
    with pytest.raises(PromptError):
        pipeline.generate([refused], "ar")
