"""The eager engine: cached rows against whole sequences, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from vvs.engine import DraftRows, TargetRows
from vvs.errors import PromptError, SettingsError
from vvs.export.eager import EagerEngine
from vvs.export.llamagen import guide

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

IDS = np.array([[2, 3, 0, 0, 0, 0], [4, 5, 6, 7, 0, 0], [3, 0, 0, 0, 0, 0]])
PROMPTS = {"token_ids": IDS, "mask": IDS > 0}
CFG = np.array([1.5, 2.0, 3.0], np.float32)


@pytest.fixture(scope="module")
def engine(tiny_models: ModelSet) -> EagerEngine:
    return EagerEngine(tiny_models)


def chain(tokens: np.ndarray, past: int, cfg: np.ndarray) -> TargetRows:
    n, T = tokens.shape
    return TargetRows(
        tokens,
        np.tile(past + np.arange(T), (n, 1)),
        np.tile(np.tri(T, dtype=bool), (n, 1, 1)),
        np.full(n, past),
        cfg,
    )


def test_cached_rows_equal_a_whole_sequence(engine: EagerEngine, tiny_models: ModelSet) -> None:
    """Prefill, two chunks with a commit between them, in another order of requests."""
    P = engine.geometry.prompt_length
    tokens = np.random.default_rng(0).integers(0, 96, (3, 9))
    session = engine.open(3)
    session.prefill(PROMPTS, CFG)
    rows = np.array([2, 0])
    first = session.verify(rows, chain(tokens[rows, :4], P, CFG[rows]))
    session.commit(rows, [np.arange(4)] * 2, np.full(2, P))
    second = session.verify(rows, chain(tokens[rows, 4:], P + 4, CFG[rows]))
    assert session.engine_seconds > 0
    target = tiny_models.target
    with torch.no_grad():
        prompt = target.encode_prompt(*(torch.from_numpy(a) for a in PROMPTS.values()))
        features = target.whole_sequence(prompt, torch.from_numpy(np.concatenate([tokens] * 2)))[:, P:]
        logits = guide(target.logits(features), torch.from_numpy(CFG)).numpy()
    np.testing.assert_allclose(np.concatenate([first.logits, second.logits], 1), logits[rows], atol=1e-4)
    both = np.concatenate([rows, rows + 3])
    np.testing.assert_allclose(
        np.concatenate([first.features, second.features], 1), features.numpy()[both], atol=1e-4
    )
    session.close()


def test_drafter_rows_are_kept(engine: EagerEngine) -> None:
    """Consuming rows in two calls drafts the same tree as consuming them in one; padding does not matter."""
    rng = np.random.default_rng(1)
    features = rng.standard_normal((2, 7, 32)).astype(np.float32)
    tokens = rng.integers(0, 96, (1, 7))
    one = np.ones(1, np.float32)

    def rows(start: int, stop: int, padding: int = 0) -> DraftRows:
        width = ((0, 0), (0, padding))
        return DraftRows(
            features=np.pad(features[:, start:stop], (*width, (0, 0)), constant_values=9.0),
            tokens=np.pad(tokens[:, start:stop], width),
            positions=np.arange(1 + start, 1 + stop + padding)[None],
            count=np.array([stop - start]),
            past_length=np.array([start]),
            cfg_scale=2 * one,
            temperature=one,
            top_p=one,
        )

    which, tree = np.array([0]), next(iter(engine.trees))
    whole = engine.open(1).draft(which, rows(0, 7), tree)
    session = engine.open(1)
    session.draft(which, rows(0, 4, padding=3), tree)
    parts = session.draft(which, rows(4, 7, padding=2), tree)
    for expected, got in zip(whole, parts, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
    assert whole.tokens[0, 0] == tokens[0, -1]


def test_what_is_refused(engine: EagerEngine) -> None:
    with pytest.raises(SettingsError, match="a session holds 1 to 4 requests, but 5 were asked for"):
        engine.open(5)
    session = engine.open(3)
    with pytest.raises(PromptError, match="prompts are token_ids and mask, but got class_ids"):
        session.prefill({"class_ids": np.zeros(3, np.int64)}, CFG)
    with pytest.raises(PromptError, match="token_ids has 2 rows, but the session holds 3 requests"):
        session.prefill({name: a[:2] for name, a in PROMPTS.items()}, CFG)
    rows = DraftRows(*(np.zeros((3, 1), np.int64),) * 5, *(CFG,) * 3)
    with pytest.raises(SettingsError, match="the draft tree is 'oak', but this engine has: tiny"):
        session.draft(np.arange(3), rows, "oak")


def test_images(engine: EagerEngine) -> None:
    image = engine.decode_image(np.zeros((2, 36), np.int64))
    assert image.shape == (2, 3, 12, 12)
    assert np.abs(image).max() <= 1
