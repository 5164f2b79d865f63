"""Coupled trees in whole pipelines: exact modes draw the pictures of AR, and every engine draws the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from vvs.errors import SettingsError
from vvs.runtime.pipeline import Pipeline

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

pytest.importorskip("onnxruntime")
PROMPTS = ["a red dress", "blue shirt", "green shoe"]
SEEDS = [3, 4, 5]
FLAT, DEEP = "k3-d0-n3-coupled", "k3-d2-n8-coupled"
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("ar", {}),
    ("eagle", {"tree": DEEP, "temperature": 0.8, "top_k": 20}),
    ("eagle", {"tree": FLAT, "top_p": 0.9}),
    ("lantern", {"tree": DEEP, "acceptance": "lantern:k=8,delta=0.3"}),
    ("vvs", {"tree": DEEP, "policy": "uniform:2", "selector": "sampled"}),
    ("vvs", {"tree": DEEP, "skip_tree": FLAT, "policy": "share:0.6", "draft_cfg_ratio": 1.5}),
    ("vvs", {"tree": DEEP, "temperature": 0}),
]


@pytest.fixture(scope="module")
def host(coupled_bundle: Path) -> Pipeline:
    return Pipeline.from_bundle(coupled_bundle, threads=1)


@pytest.mark.parametrize("tree", [FLAT, DEEP, "tiny"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_k": 12}, {"top_p": 0.8}], ids=str)
def test_eagle_draws_the_pictures_of_ar(host: Pipeline, tree: str, sampling: dict[str, float]) -> None:
    plain = host.generate(PROMPTS, host.configure("ar", coupled=True, **sampling), SEEDS)
    config = host.configure("eagle", tree=tree, acceptance="exact", coupled=True, **sampling)
    drafted = host.generate(PROMPTS, config, SEEDS)
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    assert len({picture.tobytes() for picture in plain.tokens}) == len(SEEDS)


def test_coupled_trees_are_accepted_more_often(host: Pipeline) -> None:
    """Even where the drafter has learned nothing: the noise alone makes the two agree."""
    passes = {
        tree: sum(
            image.statistics.forward_passes
            for image in host.generate(
                PROMPTS, host.configure("eagle", tree=tree, acceptance="exact", coupled=True), SEEDS
            ).images
        )
        for tree in (DEEP, "tiny")
    }
    assert passes[DEEP] < passes["tiny"]


def test_draws_what_eager_modules_draw(host: Pipeline, coupled_models: ModelSet) -> None:
    from vvs.codebook import Codebook
    from vvs.decoding import Decoder
    from vvs.export.eager import EagerEngine
    from vvs.runtime.prompts import encode
    from vvs.uniforms import UniformStream

    configs = [host.configure(mode, coupled=True, **settings) for mode, settings in RUNS[1:5]]
    neighbours = max(config.acceptance.neighbours for config in configs)
    decoder = Decoder(EagerEngine(coupled_models), Codebook.from_latents(coupled_models.codebook, neighbours))
    for config in configs:
        drawn = host.generate(PROMPTS, config, SEEDS)
        streams = [UniformStream(seed) for seed in SEEDS]
        oracle = decoder.generate(encode(host.bundle, PROMPTS), [config] * 3, streams)
        np.testing.assert_array_equal(drawn.tokens, oracle.tokens)


def test_requests_of_a_batch_are_drawn_as_alone(host: Pipeline) -> None:
    configs = [host.configure(mode, coupled=True, **settings) for mode, settings in RUNS]
    prompts, seeds = [PROMPTS[i % 3] for i in range(len(RUNS))], list(range(len(RUNS)))
    together = host.generate(prompts, configs, seeds, batch=4)
    for i, (prompt, config) in enumerate(zip(prompts, configs, strict=True)):
        np.testing.assert_array_equal(host.generate(prompt, config, i).tokens[0], together.tokens[i])


@pytest.mark.parametrize("options", [{}, {"cuda_graphs": False}, {"whole_image_graph": True}], ids=str)
def test_draws_the_same_on_a_device(coupled_bundle: Path, host: Pipeline, options: dict[str, bool]) -> None:
    device = Pipeline.from_bundle(coupled_bundle, "cuda-on-host", threads=1, check=True, **options)
    configs = [host.configure(mode, coupled=True, **settings) for mode, settings in RUNS]
    prompts, seeds = [PROMPTS[i % 3] for i in range(len(RUNS))], list(range(len(RUNS)))
    for batch in (1, 4):
        ours, theirs = (each.generate(prompts, configs, seeds, batch=batch) for each in (device, host))
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)


def test_a_coupled_tree_needs_coupled_sampling(host: Pipeline) -> None:
    with pytest.raises(SettingsError, match="coupled is false; set coupled"):
        host.generate(PROMPTS[0], host.configure("eagle", tree=DEEP), 0)
