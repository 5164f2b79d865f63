"""Codebook and its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from vvs import codebook as module
from vvs.codebook import Codebook, nearest_codes
from vvs.errors import SettingsError


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 999), st.integers(1, 64), st.data())
def test_neighbours_are_ranked_by_distance_then_index(
    V: int, C: int, seed: int, chunk: int, data: st.DataObject
) -> None:
    K = data.draw(st.integers(0, V - 1))
    # Small integers: many exact ties.
    latents = np.random.default_rng(seed).integers(0, 3, size=(V, C)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ELEMENTS", chunk)
        nearest = nearest_codes(latents, K)
    for code in range(V):
        distance = ((latents - latents[code]) ** 2).sum(axis=1)
        expected = sorted((other for other in range(V) if other != code), key=lambda j: (distance[j], j))
        assert nearest[code].tolist() == expected[:K]
    Codebook(latents, nearest)


def test_recorded_neighbours() -> None:
    codes = recorded.golden("codebook")
    nearest = nearest_codes(codes["latents"], 511)
    # A few far neighbours tie within float32 and are recorded in the other order.
    assert (nearest != codes["nearest"]).mean() < 1e-4
    assert (nearest[:, :65] == codes["nearest"][:, :65]).all()


def test_directions_have_length_one_or_zero() -> None:
    codebook = Codebook.from_latents(np.array([[3.0, 4.0], [0.0, 0.0]]), 1)
    np.testing.assert_allclose(codebook.directions, [[0.6, 0.8], [0, 0]])


def test_a_rule_that_wants_more_neighbours_than_listed_is_told() -> None:
    codebook = Codebook.from_latents(np.eye(6), 3)
    codebook.require(3)
    with pytest.raises(
        SettingsError, match="4 nearest codes per token are needed, but this codebook lists 3 of 5"
    ):
        codebook.require(4)


@pytest.mark.parametrize(
    ("latents", "nearest", "message"),
    [
        (np.zeros(3), np.zeros((3, 1), int), "codebook latents are"),
        (np.zeros((3, 2), int), np.zeros((3, 1), int), "codebook latents are"),
        (np.zeros((3, 2)), np.zeros((2, 1), int), r"must be integers \[3, K\] with K <= 2"),
        (np.zeros((3, 2)), np.zeros((3, 3), int), "K <= 2"),
        (np.zeros((3, 2)), np.zeros((3, 1)), "must be integers"),
        (np.zeros((3, 2)), np.array([[1], [2], [3]]), r"must lie in 0\.\.2"),
        (np.zeros((3, 2)), np.array([[1], [2], [2]]), "among its own neighbours"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(latents: np.ndarray, nearest: np.ndarray, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Codebook(latents, nearest)


def test_more_neighbours_than_there_are_others() -> None:
    with pytest.raises(SettingsError, match="neighbours is 3, but 3 codes have only 2 others each"):
        nearest_codes(np.eye(3), 3)
