"""A drafter of two layers: every engine keeps the rows of both, and draws the same pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from vvs.runtime.bundle import Bundle
from vvs.runtime.pipeline import Pipeline

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

pytest.importorskip("onnxruntime")
PROMPTS = ["a red dress", "blue shirt", "green shoe"]
SEEDS = [3, 4, 5]


@pytest.fixture(scope="module")
def bundle(deep_models: ModelSet, request: pytest.FixtureRequest) -> Path:
    pytest.importorskip("onnxscript")
    from vvs.export.bundle import export_bundle

    path = request.config.cache.mkdir("vvs") / "deep-drafter"
    export_bundle(deep_models, path)
    return path


@pytest.fixture(scope="module")
def host(bundle: Path) -> Pipeline:
    return Pipeline.from_bundle(bundle, threads=1)


def test_the_manifest_tells_the_caches(bundle: Path, tiny_bundle: Path) -> None:
    assert Bundle.open(bundle).manifest.drafter_layers == 2
    assert Bundle.open(tiny_bundle).manifest.drafter_layers == 1


def test_draws_what_eager_modules_draw(host: Pipeline, deep_models: ModelSet) -> None:
    from vvs.codebook import Codebook
    from vvs.decoding import Decoder
    from vvs.export.eager import EagerEngine
    from vvs.runtime.prompts import encode
    from vvs.uniforms import UniformStream

    config = host.configure("vvs", policy="uniform:2", selector="sampled")
    drawn = host.generate(PROMPTS, config, SEEDS)
    decoder = Decoder(
        EagerEngine(deep_models), Codebook.from_latents(deep_models.codebook, config.acceptance.neighbours)
    )
    prompts = encode(host.bundle, PROMPTS)
    oracle = decoder.generate(prompts, [config] * 3, [UniformStream(seed) for seed in SEEDS])
    np.testing.assert_array_equal(drawn.tokens, oracle.tokens)
    assert all(statistics.skips for statistics in oracle.statistics)


def test_greedy_eagle_is_greedy_ar(host: Pipeline) -> None:
    plain, drafted = (
        host.generate(PROMPTS, host.configure(mode, temperature=0), SEEDS) for mode in ("ar", "eagle")
    )
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)


def test_requests_of_a_batch_are_drawn_as_alone(host: Pipeline) -> None:
    config = host.configure("vvs", policy="uniform:2", selector="sampled")
    together = host.generate(PROMPTS, config, SEEDS)
    for i, (prompt, seed) in enumerate(zip(PROMPTS, SEEDS, strict=True)):
        np.testing.assert_array_equal(host.generate(prompt, config, seed).tokens[0], together.tokens[i])


@pytest.mark.parametrize("options", [{}, {"cuda_graphs": False}, {"whole_image_graph": True}], ids=str)
def test_draws_the_same_on_a_device(bundle: Path, host: Pipeline, options: dict[str, bool]) -> None:
    device = Pipeline.from_bundle(bundle, "cuda-on-host", threads=1, check=True, **options)
    config = host.configure("vvs", policy="uniform:2", selector="sampled")
    ours, theirs = (pipeline.generate(PROMPTS, config, SEEDS) for pipeline in (device, host))
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
