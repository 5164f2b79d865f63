"""The demo's data: tints, prompts, and pairs that training never sees."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from vvs.errors import PromptError, VvsError
from vvs.export.training.garments import (
    COLOUR_NAMES,
    COLOURS,
    GARMENT_NAMES,
    HELD_OUT_PAIRS,
    describe,
    draw_colours,
    load_garments,
    tint,
)
from vvs.export.training.vocabulary import build_tokenizer, encode


def test_held_out_pairs_are_never_drawn_for_training() -> None:
    labels = np.repeat(np.arange(10), 300)
    rng = np.random.default_rng(0)
    seen = set(zip(draw_colours(labels, rng).tolist(), labels.tolist(), strict=True))
    assert not seen & HELD_OUT_PAIRS
    assert len(seen) == len(COLOUR_NAMES) * len(GARMENT_NAMES) - len(HELD_OUT_PAIRS)
    held = set(zip(draw_colours(labels, rng, held_out=True).tolist(), labels.tolist(), strict=True))
    assert held == HELD_OUT_PAIRS


def test_every_prompt_is_made_of_known_words_and_fits() -> None:
    tokenizer, rng = build_tokenizer(8), np.random.default_rng(1)
    pairs = [(c, g) for c in range(len(COLOUR_NAMES)) for g in range(len(GARMENT_NAMES))]
    prompts = [describe(c, g, rng) for c, g in pairs for _ in range(20)]
    ids, mask = encode(tokenizer, prompts, 8)
    assert ids.shape == mask.shape == (len(prompts), 8)
    assert not (ids == tokenizer.token_to_id("[UNK]")).any()
    assert torch.equal(mask, ids != tokenizer.token_to_id("[PAD]"))
    assert len(set(prompts)) > 500
    with pytest.raises(PromptError, match="9 words, more than 8"):
        encode(tokenizer, ["a a a a a a a a a"], 8)


def test_a_tint_shows_its_colour_on_a_light_backdrop() -> None:
    grey = torch.zeros(len(COLOURS), 32, 32, dtype=torch.uint8)
    grey[:, 8:24, 8:24] = 235
    pixels = (tint(grey, torch.arange(len(COLOURS))) + 1) / 2
    assert pixels.shape == (len(COLOURS), 3, 32, 32)
    assert (pixels[:, :, 0, 0] > 0.9).all()
    table = torch.tensor(list(COLOURS.values()))
    distance = torch.cdist(pixels[:, :, 16, 16], table)
    assert distance.argmin(1).tolist() == list(range(len(COLOURS)))


def test_reading_the_files(tmp_path: Path) -> None:
    with pytest.raises(VvsError, match="dataset-fashion-mnist"):
        load_garments("test", tmp_path)
    images = np.arange(2 * 28 * 28, dtype=np.int64).astype(np.uint8)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + images.tobytes()))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + bytes([3, 9])))
    data = load_garments("test", tmp_path)
    assert data.labels.tolist() == [3, 9]
    assert data.grey.shape == (2, 32, 32)
    assert data.grey[1, 2, 2] == images[28 * 28]
    assert not data.grey[:, :2].any()
