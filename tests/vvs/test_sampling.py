"""Sampling and streams of uniform numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vvs.errors import BackendError, SettingsError, VvsError
from vvs.sampling import Sampling, process, sample
from vvs.uniforms import RecordedUniforms, UniformStream


def reference(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The published processors in turn: temperature, top-p over a rising sort, top-k, softmax."""
    scores = logits.astype(np.float64) / sampling.temperature
    if sampling.top_p < 1:
        rising = np.lexsort((-np.arange(scores.size), scores))
        p = np.exp(scores[rising] - scores.max())
        remove = np.cumsum(p / p.sum()) <= 1 - sampling.top_p
        remove[-1] = False
        scores[rising[remove]] = -np.inf
    if 0 < sampling.top_k < scores.size:
        scores[scores < np.sort(scores)[-sampling.top_k]] = -np.inf
    p = np.exp(scores - scores.max())
    return p / p.sum()


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 3000),
    st.integers(0, 2**32 - 1),
    st.floats(0.05, 3),
    st.integers(0, 300),
    st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
)
def test_process_is_the_published_order(
    size: int, seed: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(size=size).astype(np.float32) * 3
    sampling = Sampling(temperature, top_k, top_p)
    np.testing.assert_allclose(process(logits, sampling), reference(logits, sampling), atol=1e-12)


def test_the_nucleus_is_measured_before_top_k() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    # Half of all probability is the first two tokens; half of the best three would be the first alone.
    np.testing.assert_allclose(process(logits, Sampling(top_k=3, top_p=0.5)), [4 / 7, 3 / 7, 0, 0], atol=1e-6)


def test_ties_at_the_k_th_token_are_all_kept() -> None:
    assert np.count_nonzero(process(np.array([1, 0, 1, 1], np.float32), Sampling(top_k=2))) == 3


def test_on_the_edge_of_a_nucleus_the_lower_index_wins() -> None:
    assert np.flatnonzero(process(np.zeros(4096, np.float32), Sampling(top_p=0.5))).tolist() == list(
        range(2048)
    )


def test_temperature_0_takes_the_likeliest() -> None:
    p = process(np.array([0, 3, 3, 1], np.float32), Sampling(temperature=0, top_k=1, top_p=0.1))
    assert p.tolist() == [0, 1, 0, 0]


def test_masked_logits_are_fine_but_nonsense_is_not() -> None:
    masked = np.array([-np.inf, 0, -np.inf], np.float32)
    assert process(masked, Sampling()).tolist() == [0, 1, 0]
    for bad in (np.array([0, np.nan]), np.full(3, -np.inf), np.array([0, np.inf])):
        for sampling in (Sampling(), Sampling(temperature=0), Sampling(top_k=1), Sampling(top_p=0.5)):
            with pytest.raises(BackendError, match="not a finite number"):
                process(bad.astype(np.float32), sampling)


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 1e-12]), min_size=1, max_size=30),
    st.floats(0, 1, exclude_max=True),
)
def test_sampling_never_takes_a_token_of_no_probability(weights: list[float], uniform: float) -> None:
    p = np.array([*weights, 0.5, 0.0])
    token = sample(p, uniform)
    assert p[token] > 0
    assert p[:token].sum() <= uniform * p.sum() * (1 + 1e-12)


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1, 0)])
def test_sampling_at_the_ends_of_the_interval(uniform: float) -> None:
    assert sample(np.array([0, 0.1, 0.2, 0.0]), uniform) == (1 if uniform == 0 else 2)


def test_sampling_is_the_inverse_of_the_cumulative_distribution() -> None:
    p = np.array([0.2, 0.0, 0.5, 0.3]) * 7
    assert [sample(p, u) for u in (0.1, 0.199, 0.201, 0.69, 0.71)] == [0, 0, 2, 2, 3]


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"temperature": -1}, "temperature is -1, but it must be a finite number >= 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": -1}, "top_k is -1, but it must be an integer >= 0"),
        ({"top_k": 2.0}, "top_k is 2.0"),
        ({"top_k": True}, "top_k is True"),
        ({"top_p": 0}, "top_p is 0, but it must be a finite number > 0 and <= 1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings_: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Sampling(**settings_)  # type: ignore[arg-type]


def test_streams_count_and_repeat() -> None:
    one, other = UniformStream(5), UniformStream(5)
    expected = np.random.Generator(np.random.PCG64(5)).random(3).tolist()
    assert [one.next() for _ in range(3)] == [other.next() for _ in range(3)] == expected
    assert one.used == 3
    with pytest.raises(SettingsError, match="seed is -1"):
        UniformStream(-1)


def test_recorded_streams_end() -> None:
    uniforms = RecordedUniforms([0.5, 0.25])
    assert (uniforms.next(), uniforms.remaining, uniforms.used) == (0.5, 1, 1)
    uniforms.next()
    with pytest.raises(VvsError, match="all 2 recorded uniforms are used up"):
        uniforms.next()
    with pytest.raises(SettingsError, match=r"\[0, 1\)"):
        RecordedUniforms([1.0])
