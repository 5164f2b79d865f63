"""Fréchet distances, where they are known beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from vvs.benchmarks.bootstrap import mean
from vvs.benchmarks.frechet import FrechetReference
from vvs.errors import SettingsError


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return FrechetReference(b).distance(a)


def test_the_distance_of_gaussians_is_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(4000, 3)) * [1.0, 2.0, 0.0]
    assert distance(a, a) == pytest.approx(0, abs=1e-6)
    assert distance(a + np.array([3.0, 0.0, 4.0]), a) == pytest.approx(25, abs=1e-6)
    # Axis-aligned: the squared difference of the deviations.
    deviations = a.std(axis=0, ddof=1)
    assert distance(a * 3, a) == pytest.approx(
        (2 * deviations**2 * 2).sum() + ((a.mean(0) * 2) ** 2).sum(), rel=1e-2
    )


def test_the_distance_is_symmetric_and_knows_no_order() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(60, 4)), rng.normal(size=(50, 4)) @ rng.normal(size=(4, 4))
    assert distance(a, b) == pytest.approx(distance(b, a))
    assert distance(a[::-1], b[rng.permutation(50)]) == pytest.approx(distance(a, b))
    # As from the means and covariances themselves.
    import scipy.linalg

    covariances = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    gap = a.mean(0) - b.mean(0)
    root = np.real(scipy.linalg.sqrtm(covariances[0] @ covariances[1]))
    assert distance(a, b) == pytest.approx(gap @ gap + np.trace(covariances[0] + covariances[1] - 2 * root))


def test_the_interval_holds_the_figure_and_the_bias_that_few_pictures_bring() -> None:
    rng = np.random.default_rng(2)
    reference = FrechetReference(rng.normal(size=(5000, 4)))
    many, few = rng.normal(size=(2000, 4)), rng.normal(size=(50, 4))
    sure, unsure = reference.estimate(many, 200), reference.estimate(few, 200)
    for found, given in ((sure, many), (unsure, few)):
        assert found.interval is not None
        assert found.interval.low <= found.value == found.interval.value <= found.interval.high
        assert found.value == reference.distance(given)
    assert sure.interval is not None
    assert unsure.interval is not None
    assert sure.interval.high - sure.interval.low < unsure.interval.high - unsure.interval.low
    assert sure.bias is not None
    assert unsure.bias is not None
    # Both are of the same distribution as the reference: what the few have is bias, and it is said.
    assert 0 < sure.bias < unsure.bias
    usual = np.mean([reference.distance(rng.normal(size=(50, 4))) for _ in range(50)])
    assert unsure.bias == pytest.approx(usual, rel=0.6)
    plain = reference.estimate(few, 0)
    assert plain.value == pytest.approx(unsure.value)
    assert plain.interval is plain.bias is None


def test_one_picture_has_no_covariance() -> None:
    with pytest.raises(SettingsError, match="1 pictures are given, but a covariance"):
        FrechetReference(np.zeros((1, 4)))
    with pytest.raises(SettingsError, match="at least 2"):
        FrechetReference(np.eye(4)).distance(np.zeros((1, 4)))


def test_a_mean_has_an_interval_that_narrows_with_the_count() -> None:
    few, many = (mean((np.arange(n) % 4 != 0).astype(np.float64)) for n in (40, 400))
    assert few.value == many.value == 0.75
    assert few.low < many.low < 0.75 < many.high < few.high
