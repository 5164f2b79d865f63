"""Noise that draft and target share: its numbers, and drawing by it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vvs.errors import BackendError
from vvs.noise import BLOCK, GumbelNoise
from vvs.sampling import Sampling, couple, process
from vvs.uniforms import RecordedUniforms, UniformStream

LEVEL = 1e-4


def test_numbers_are_standard_gumbel() -> None:
    noise = GumbelNoise.drawn(UniformStream(0), 64)
    numbers = np.stack([noise.row(position) for position in range(500)]).ravel()
    assert stats.kstest(numbers, "gumbel_r").pvalue > LEVEL
    assert stats.kstest(numbers * 1.05, "gumbel_r").pvalue < LEVEL


def test_positions_tokens_and_keys_are_independent() -> None:
    rows = np.stack([GumbelNoise(key, 400).row(position) for key in (1, 2) for position in (0, 1, BLOCK)])
    correlations = np.corrcoef(rows)[~np.eye(6, dtype=bool)]
    assert np.abs(correlations).max() < 0.25
    assert np.unique(rows).size == rows.size


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**53 - 1), st.lists(st.integers(0, 4000), min_size=1, max_size=12))
def test_a_row_does_not_depend_on_what_was_asked_before(key: int, positions: list[int]) -> None:
    noise = GumbelNoise(key, 7)
    for position in positions:
        np.testing.assert_array_equal(noise.row(position), GumbelNoise(key, 7).row(position))


def test_the_key_is_one_number_of_the_stream() -> None:
    stream = RecordedUniforms([0.5, 0.25])
    noise = GumbelNoise.drawn(stream, 5)
    assert stream.used == 1
    np.testing.assert_array_equal(noise.row(3), GumbelNoise(2**52, 5).row(3))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.6, top_k=4), Sampling(1.4, top_p=0.7)])
def test_drawing_by_noise_is_distributed_as_sampling(sampling: Sampling) -> None:
    samples, logits = 8000, np.random.default_rng(1).normal(size=9).astype(np.float32)
    noise = GumbelNoise(77, logits.size)
    counts = np.bincount([couple(logits, sampling, noise.row(i)) for i in range(samples)], minlength=9)
    expected = process(logits, sampling)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], expected[possible] * samples).pvalue > LEVEL
    wrong = expected[possible] + 0.05 / (possible.sum() - 1)  # a distortion of 5% would be seen
    wrong[expected[possible].argmax()] -= 0.05 * possible.sum() / (possible.sum() - 1)
    assert stats.chisquare(counts[possible], wrong * samples).pvalue < LEVEL


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.integers(0, 20),
    st.sampled_from([1.0, 0.9, 0.3]),
)
def test_the_best_of_what_is_kept_is_drawn(
    size: int, seed: int, heat: float, top_k: int, top_p: float
) -> None:
    logits = np.random.default_rng(seed).integers(-3, 4, size).astype(np.float32)
    sampling = Sampling(heat, top_k, top_p)
    noise = GumbelNoise(seed, size).row(0)
    perturbed = np.where(process(logits, sampling) > 0, logits.astype(np.float64) / heat + noise, -np.inf)
    assert couple(logits, sampling, noise) == perturbed.argmax()


@pytest.mark.parametrize("worst", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_an_error(worst: float) -> None:
    logits = np.full(4, worst, np.float32)
    with pytest.raises(BackendError, match="not a finite number"):
        couple(logits, Sampling(), np.zeros(4, np.float32))
