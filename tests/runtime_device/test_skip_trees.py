"""Steps that are planned to be skipped draft a tree of their own, on a device as on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vvs.config import GenerationConfig
from vvs.runtime.device.step_trees import StepTrees
from vvs.runtime.pipeline import Pipeline
from vvs.skipping import Share, Uniform
from vvs.tree_shape import TreeShape

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

pytest.importorskip("onnxruntime")
PROMPTS = ["a red dress", "blue shirt", "green shoe"]
SEEDS = [3, 4, 5]
TREES = {"narrow": TreeShape(2, 1, 5), "wide": TreeShape(4, 0, 4), "deep": TreeShape(2, 3, 9)}


@pytest.fixture(scope="module")
def bundle(tiny_models: ModelSet, request: pytest.FixtureRequest) -> Path:
    pytest.importorskip("onnxscript")
    from vvs.export.bundle import export_bundle

    path = request.config.cache.mkdir("vvs") / "three-trees"
    export_bundle(replace(tiny_models, trees=TREES, default_tree="narrow"), path)
    return path


@pytest.fixture(scope="module")
def host(bundle: Path) -> Pipeline:
    return Pipeline.from_bundle(bundle, threads=1)


FORMS: dict[str, dict[str, bool]] = {
    "graphs": {},
    "plain": {"cuda_graphs": False},
    "whole image": {"whole_image_graph": True},
}


@pytest.fixture(scope="module", params=FORMS)
def device(bundle: Path, request: pytest.FixtureRequest) -> Pipeline:
    return Pipeline.from_bundle(bundle, "cuda-on-host", threads=1, check=True, **FORMS[request.param])


@pytest.mark.parametrize("selector", ["random", "sampled", "confident", "sampled:truncate=false"])
@pytest.mark.parametrize(("tree", "skip_tree"), [("narrow", "wide"), ("narrow", "deep"), ("deep", "narrow")])
def test_draws_what_the_host_draws(
    host: Pipeline, device: Pipeline, tree: str, skip_tree: str, selector: str
) -> None:
    config = host.configure("vvs", tree=tree, skip_tree=skip_tree, policy="uniform:2", selector=selector)
    theirs, ours = (pipeline.generate(PROMPTS, config, SEEDS) for pipeline in (host, device))
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    for a, b in zip(ours.statistics, theirs.statistics, strict=True):
        assert (a.forward_passes, a.skips) == (b.forward_passes, b.skips)
        assert b.skips > 0


def test_batches_mix_trees_and_plans(host: Pipeline, device: Pipeline) -> None:
    configs = [
        host.configure("vvs", tree="narrow", skip_tree="wide", policy="uniform:2", selector="sampled"),
        host.configure("vvs", tree="deep", skip_tree="narrow", policy="share:0.6", draft_cfg_ratio=2.5),
        host.configure("eagle", tree="narrow"),
        host.configure("ar"),
    ]
    prompts = [PROMPTS[i % 3] for i in range(4)]
    ours, theirs = (pipeline.generate(prompts, configs, 7) for pipeline in (device, host))
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)


def test_a_whole_image_drafts_only_what_a_step_wants(bundle: Path, host: Pipeline) -> None:
    calls: list[str] = []
    options = {"threads": 1, "check": True, "hook": calls.append, "whole_image_graph": True}
    pipeline = Pipeline.from_bundle(bundle, "cuda-on-host", **options)
    config = pipeline.configure("vvs", tree="narrow", skip_tree="wide", policy="uniform:2")
    pipeline.warm_up(PROMPTS[0], config)
    calls.clear()
    drawn = pipeline.generate(PROMPTS[0], config, 3)
    (statistics,) = drawn.statistics
    np.testing.assert_array_equal(drawn.tokens, host.generate(PROMPTS[0], config, 3).tokens)
    # A device knows how many tokens are emitted, so that a lone request drafts one tree a step.
    assert calls.count("run draft_tree.narrow") + calls.count("run draft_tree.wide") == statistics.steps
    assert calls.count("run vvs_skip") == statistics.skips > 0
    assert calls.count("run vvs_accept") == statistics.forward_passes - 1


def test_warming_up_captures_the_steps_of_both_trees(bundle: Path, host: Pipeline) -> None:
    calls: list[str] = []
    pipeline = Pipeline.from_bundle(bundle, "cuda-on-host", threads=1, check=True, hook=calls.append)
    config = pipeline.configure("vvs", tree="narrow", skip_tree="wide", policy="uniform:2")
    pipeline.warm_up(PROMPTS, config)
    calls.clear()
    ours = pipeline.generate(PROMPTS, config, SEEDS)
    np.testing.assert_array_equal(ours.tokens, host.generate(PROMPTS, config, SEEDS).tokens)
    assert not {"begin_capture", "allocate", "pinned"} & set(calls)
    drafts = [call for call in calls if call.startswith("run draft_tree.")]
    steps = calls.count("run vvs_decide")
    assert len(drafts) <= steps + 3  # both trees only where the first tokens leave it open
    assert {"run draft_tree.narrow", "run draft_tree.wide"} == set(drafts)


CONFIGS = st.builds(
    lambda policy, wider: GenerationConfig(
        tree="narrow", skip_tree="wide" if wider else None, skipping=policy
    ),
    st.one_of(st.builds(Uniform, st.integers(2, 5)), st.builds(Share, st.floats(0, 0.9))),
    st.booleans(),
)


@given(st.lists(CONFIGS, min_size=1, max_size=3), st.integers(0, 40), st.integers(0, 9), st.integers(0, 5))
def test_every_answer_is_among_the_kinds_and_holds_what_is_drafted(
    configs: list[GenerationConfig], step: int, more: int, width: int
) -> None:
    trees = StepTrees(configs, ("narrow", "wide"))
    fewest = step + more
    answer = trees.of(step, fewest, fewest + width)
    assert answer in trees.kinds(64)
    for emitted in range(fewest, fewest + width + 1):
        assert set(trees.of(step, emitted, emitted)) <= set(answer)
