"""The whole way: a drafter is trained, exported with its target, and drafts in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trainings import QUICK, Train
from typer.testing import CliRunner

from vvs.cli.app import app
from vvs.runtime.pipeline import Pipeline
from vvs.statistics import StepKind

PROMPTS = ["a red dress", "blue shirt", "green shoe"]
SEEDS = [3, 4, 5]


def test_from_tokens_to_pictures(
    train: Train, train_for: Train, tokens: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    # The recipe names the drafter before it exists, and there is no other.
    (tiny_recipe.parent / "drafter.safetensors").unlink()
    text = tiny_recipe.read_text()
    tiny_recipe.write_text(text.replace("[weights]\n", '[weights]\ndrafter = "mine"\n'))
    trained = train(tokens, "-o", tmp_path / "mine", *QUICK, "--steps", 5, "--stale", 0.4)
    assert trained.exit_code == 0, trained.stderr

    bundle = tmp_path / "bundle"
    exported = CliRunner().invoke(app, ["export", str(tiny_recipe), "-o", str(bundle), "--quiet"])
    assert exported.exit_code == 0, exported.stderr

    pipeline = Pipeline.from_bundle(bundle, threads=1)
    assert pipeline.bundle.manifest.random_parts == ()
    assert pipeline.bundle.manifest.origin.recipe == "../tiny.toml"
    greedy = {
        mode: pipeline.generate(PROMPTS, pipeline.configure(mode, temperature=0.0), SEEDS)
        for mode in ("ar", "eagle")
    }
    np.testing.assert_array_equal(greedy["eagle"].tokens, greedy["ar"].tokens)
    for mode in ("eagle", "vvs"):
        drawn = pipeline.generate(PROMPTS, mode, SEEDS)
        assert drawn.tokens.shape == (3, 36)
        assert drawn.tokens.min() >= 0
        assert drawn.tokens.max() < pipeline.bundle.manifest.geometry.vocabulary
        for statistics in drawn.statistics:
            assert statistics.image_tokens == 36
            assert (statistics.skips > 0) == (mode == "vvs")
            assert statistics.mean_accepted(StepKind.VERIFY) >= 0

    # And back: the bundle is enough to train its next drafter, from the last one.
    again = train_for(bundle, tokens, "-o", tmp_path / "next", *QUICK, "--go-on")
    assert again.exit_code == 0, again.stderr
