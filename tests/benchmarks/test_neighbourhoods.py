"""Precision and recall, where they are known beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from vvs.benchmarks.neighbourhoods import precision_recall
from vvs.errors import SettingsError


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0])
def test_identical_sets_have_both(scale: float) -> None:
    features = 1e3 + scale * np.random.default_rng(0).normal(size=(40, 6))
    assert precision_recall(features, features) == (1, 1)
    assert precision_recall(features[::-1], features) == (1, 1)


def test_sets_apart_have_neither_and_a_part_has_precision_alone() -> None:
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=(60, 2)), rng.normal(size=(60, 2)) + 100
    assert precision_recall(left, right) == (0, 0)
    both = np.concatenate([left, right])
    assert precision_recall(left, both) == (1, 0.5)
    assert precision_recall(both, left) == (0.5, 1)


def test_it_is_what_brute_force_says() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(30, 3)), rng.normal(size=(25, 3)) + 0.8

    def share(points: np.ndarray, centres: np.ndarray) -> float:
        radii = [sorted(np.linalg.norm(centres - c, axis=1))[3] for c in centres]
        near = [any(np.linalg.norm(p - c) <= r for c, r in zip(centres, radii, strict=True)) for p in points]
        return sum(near) / len(near)

    assert precision_recall(a, b) == pytest.approx((share(a, b), share(b, a)))


def test_too_few() -> None:
    with pytest.raises(SettingsError, match="3 pictures are given, but neighbourhoods of 3 need at least 4"):
        precision_recall(np.zeros((3, 2)), np.zeros((9, 2)))
