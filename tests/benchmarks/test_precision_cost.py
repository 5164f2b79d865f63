"""Precisions side by side: the same pictures in turns, and the figures where they are known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from vvs.benchmarks.baselines import eager_engine
from vvs.benchmarks.precision import EAGER, MODES, ONNX_RUNTIME, Drawn, compare, draw_all, label, opened
from vvs.runtime.bundle import Bundle
from vvs.runtime.pipeline import Pipeline
from vvs.runtime.prompts import encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class Picture:
    tokens: np.ndarray


def drawn(seconds: list[float], values: list[int]) -> Drawn:
    made: Any = Drawn("p", "ar", None)  # type: ignore[arg-type]
    made.images = [Picture(np.full(4, value)) for value in values]
    made.seconds = seconds
    return made


def test_figures_are_formed_pair_by_pair() -> None:
    baseline, other = drawn([2.0, 4.0], [1, 2, 3, 4]), drawn([1.0, 2.0], [1, 2, 3, 5])
    scored = compare(
        other, baseline, np.array([True, True, False, False]), np.array([True, False, False, False])
    )
    assert scored.score.value == 0.5
    assert scored.points.value == 25
    assert scored.ratio is not None
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


@pytest.mark.parametrize("precision", ["bf16", "int8-bf16"])
def test_eager_pytorch_draws_what_onnx_runtime_cannot(
    precision: str, tiny_bundle: Path, tiny_bundle_in: Callable[[str], Path], tiny_recipe: Path
) -> None:
    threads = torch.get_num_threads()
    pipelines = [opened(path, tiny_recipe, threads) for path in (tiny_bundle, tiny_bundle_in(precision))]
    ticks: list[int] = []
    runs = draw_all(pipelines, ["a red dress", "blue shoe", "green shirt"], 0, 2, ticks.append)
    assert [run.engine for run in runs] == [ONNX_RUNTIME, EAGER] * len(MODES)
    assert [(len(run.images), len(run.seconds)) for run in runs] == [(3, 2), (3, 0)] * len(MODES)
    assert sum(ticks) == 3 * len(runs)
    hits = np.array([True, True, False])
    scored = compare(runs[1], runs[0], hits, np.ones(3, np.bool_))
    row, data = scored.row("fp32"), scored.data()
    assert (row["precision"], row["drawn by"]) == (precision, "eager PyTorch")
    assert row["ms per picture"] == row["ms over fp32's"] == "-"
    assert row["score, % (95% interval)"].startswith("66.7 (")
    assert row["points over fp32"].startswith("-33.3 (")
    assert data["drawn_by"] == "eager PyTorch"
    assert data["milliseconds"] is data["ratio"] is None


@pytest.mark.parametrize("precision", ["bf16", "int8-bf16"])
def test_eager_pytorch_computes_in_the_bundles_precision(
    precision: str, tiny_bundle_in: Callable[[str], Path], tiny_recipe: Path
) -> None:
    bundle = Bundle.open(tiny_bundle_in(precision))
    engine = eager_engine(tiny_recipe, bundle)
    models, session = engine.models, engine.open(1)
    for module in (models.target, models.drafter):
        assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}
    assert {cache.dtype for cache in (*session._cache, *session._draft_cache)} == {torch.bfloat16}
    seen = session.prefill(encode(bundle, ["a red dress"]), np.ones(1, np.float32))
    features = torch.from_numpy(seen.features)
    assert torch.equal(features, features.bfloat16().float())
    assert {parameter.dtype for parameter in models.vq.parameters()} == {torch.float32}
