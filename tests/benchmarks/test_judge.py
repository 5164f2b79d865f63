"""The judge's figures, where they are known beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vvs.benchmarks.judge import Judge, asked
from vvs.errors import CheckpointError
from vvs.export.training.classifier import Classifier
from vvs.export.training.garments import COLOUR_NAMES, GARMENT_NAMES
from vvs.export.training.weights import save_weights


def test_every_prefix_of_the_prompts_is_spread_and_matches_what_is_asked() -> None:
    prompts, colours, garments = asked(240)
    for prompt, colour, garment in zip(prompts, colours, garments, strict=True):
        assert prompt.endswith(f"{COLOUR_NAMES[colour]} {GARMENT_NAMES[garment]}")
    assert len(set(prompts)) == 120
    assert set(np.bincount(garments)) == {24}
    assert np.bincount(garments[:60]).min() >= 2
    assert "an orange bag" in prompts


def test_judging_pictures(tmp_path: Path) -> None:
    torch.manual_seed(0)
    classifier = Classifier().eval()
    save_weights(classifier, tmp_path / "classifier.safetensors")
    judge = Judge(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        verdict = classifier(images)
    named = verdict.colours.argmax(-1).numpy(), verdict.garments.argmax(-1).numpy()
    right = judge.judge(pixels, *named)
    assert right.both_right.all()
    assert right.features.shape == (6, 64)
    wrong = judge.judge(pixels, named[0], (named[1] + 1) % 10)
    assert wrong.colour_right.all()
    assert not wrong.both_right.any()


def test_missing_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="make train"):
        Judge(tmp_path)
