"""Precisions side by side: the same pictures in turns, and the figures where they are known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")

from vvs.benchmarks.precision import MODES, Drawn, compare, draw_all, label
from vvs.runtime.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class Picture:
    pixels: np.ndarray


def drawn(seconds: list[float], values: list[int]) -> Drawn:
    made: Any = Drawn("p", "ar", None)  # type: ignore[arg-type]
    made.images = [Picture(np.full((2, 2, 3), value, np.uint8)) for value in values]
    made.seconds = seconds
    return made


def test_figures_are_formed_pair_by_pair() -> None:
    baseline, other = drawn([2.0, 4.0], [1, 2, 3, 4]), drawn([1.0, 2.0], [1, 2, 3, 5])
    scored = compare(
        other, baseline, np.array([True, True, False, False]), np.array([True, False, False, False])
    )
    assert scored.score.value == 0.5
    assert scored.points.value == 25
    assert (scored.ratio.value, scored.ratio.low, scored.ratio.high) == (0.5, 0.5, 0.5)
    assert scored.same == 0.75
    assert other.milliseconds == 750


def test_precisions_draw_in_turns(tiny_bundle: Path, tiny_bundle_in: Callable[[str], Path]) -> None:
    pipelines = [Pipeline.from_bundle(path, threads=1) for path in (tiny_bundle, tiny_bundle_in("int8"))]
    ticks: list[int] = []
    runs = draw_all(pipelines, ["a red dress", "blue shoe", "green shirt"], 0, 2, ticks.append)
    assert [(run.precision, run.mode) for run in runs] == [(p, m) for m in MODES for p in ("fp32", "int8")]
    assert all((len(run.images), len(run.seconds)) == (3, 2) for run in runs)
    assert sum(ticks) == 3 * len(runs)
    hits = np.ones(3, np.bool_)
    row = compare(runs[1], runs[0], hits, hits).row(label(pipelines[0].bundle.manifest))
    assert row["precision"] == "int8"
    assert row["points over fp32"] == "+0.0 (+0.0 to +0.0)"
    assert (
        compare(runs[1], runs[0], hits, hits).bundle_bytes
        < compare(runs[0], runs[0], hits, hits).bundle_bytes
    )
