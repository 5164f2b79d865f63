"""The eager baselines decode what the runtime decodes: with top-k 1 nothing is random, so token for token."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

from vvs.benchmarks.baselines import eager_runners
from vvs.benchmarks.eager_baselines import EagerAR, EagerVVS
from vvs.cli.app import app
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.decoding import Decoder
from vvs.engine import Conditioning
from vvs.errors import SettingsError
from vvs.export.eager import EagerEngine
from vvs.runtime.bundle import Bundle
from vvs.runtime.pipeline import Pipeline
from vvs.runtime.prompts import encode
from vvs.sampling import Sampling
from vvs.skipping import Dynamic, Never, Share, Uniform
from vvs.tree_shape import TreeShape
from vvs.uniforms import UniformStream

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet
    from vvs.skipping import SkipPolicy

# One path, so that a skipped step has no choice.
CHAIN = "k1-d2-n3"
LIKELIEST = Sampling(top_k=1)


@pytest.fixture
def models(tiny_models: ModelSet) -> ModelSet:
    return replace(tiny_models, trees={CHAIN: TreeShape(1, 2, 3)}, default_tree=CHAIN)


def conditioning(bundle: Path, prompt: str) -> Conditioning:
    return encode(Bundle.open(bundle), [prompt])


def ours(models: ModelSet, given: Conditioning, config: GenerationConfig) -> tuple[list[int], int, int]:
    decoder = Decoder(EagerEngine(models), Codebook.from_latents(models.codebook, 1))
    done = decoder.generate(given, [config], [UniformStream(0)])
    statistics = done.statistics[0]
    return done.tokens[0].tolist(), statistics.forward_passes, statistics.skips


@pytest.mark.parametrize("compiled", [False, True])
def test_ar_decodes_the_same_tokens(models: ModelSet, tiny_bundle: Path, compiled: bool) -> None:
    config = GenerationConfig(sampling=LIKELIEST, cfg_scale=2.0)
    runner = EagerAR(models, lambda prompt: conditioning(tiny_bundle, prompt), config)
    if compiled:  # what is compiled sees the whole cache; compiling it would show nothing more, slowly
        runner._compiled = True
    tokens, statistics = runner.draw("a red dress", 0)
    expected, passes, _ = ours(models, conditioning(tiny_bundle, "a red dress"), config)
    assert tokens == expected
    assert statistics.forward_passes == passes == len(tokens)


@pytest.mark.parametrize("policy", [Never(), Uniform(2), Uniform(3), Share(0.667)])
def test_vvs_takes_the_same_steps(models: ModelSet, tiny_bundle: Path, policy: SkipPolicy) -> None:
    config = GenerationConfig(sampling=LIKELIEST, cfg_scale=2.0, tree=CHAIN, skipping=policy)
    runner = EagerVVS(models, lambda prompt: conditioning(tiny_bundle, prompt), config)
    tokens, statistics = runner.draw("blue shirt", 0)
    expected, passes, skips = ours(models, conditioning(tiny_bundle, "blue shirt"), config)
    assert tokens == expected
    assert (statistics.forward_passes, statistics.skips) == (passes, skips)
    assert skips == 0 if policy == Never() else skips > 3


def test_sampled_runs_are_like_ours(models: ModelSet, tiny_bundle: Path) -> None:
    config = GenerationConfig(sampling=Sampling(temperature=0.8), tree=CHAIN, skipping=Uniform(2))
    runner = EagerVVS(models, lambda prompt: conditioning(tiny_bundle, prompt), config)
    (one, two), again = runner.run(["shirt", "shoe"], [1, 2]), runner.run(["shirt"], [1])
    assert one.to_dict() == again[0].to_dict()
    assert 1 < one.step_compression < 36
    assert two.skips > 0
    tokens = EagerAR(models, lambda prompt: conditioning(tiny_bundle, prompt), GenerationConfig()).draw(
        "shoe", 3
    )
    assert len(np.unique(tokens[0])) > 5


def test_what_the_baselines_cannot_do(models: ModelSet) -> None:
    def nothing(prompt: str) -> Conditioning:
        return {}

    with pytest.raises(SettingsError, match="temperature and top-k only"):
        EagerAR(models, nothing, GenerationConfig(sampling=Sampling(top_p=0.5)))
    with pytest.raises(SettingsError, match=r"skips by a step.s number or never"):
        EagerVVS(models, nothing, GenerationConfig(tree=CHAIN, skipping=Dynamic()))
    wider = GenerationConfig(tree=CHAIN, skipping=Uniform(2), skip_tree=CHAIN)
    with pytest.raises(SettingsError, match="one tree and the path selector random only"):
        EagerVVS(models, nothing, wider)


def test_the_benchmark_measures_them_in_the_same_run(
    tiny_bundle: Path, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vvs.benchmarks.baselines._cannot_compile", lambda: "no compiler")
    given = ["bench", tiny_bundle, "--baselines", tiny_recipe, "--run", "ar", "--no-plots", "--threads", 1]
    short = ["--iterations", 1, "--duration", 0, "--warm-up", 0, "--no-floor", "-o", tmp_path / "o"]
    result = CliRunner().invoke(app, [str(argument) for argument in (*given, *short)])
    assert result.exit_code == 0, result.output
    assert "torch.compile is left out: no compiler" in result.output
    report = (tmp_path / "o" / "bench.md").read_text()
    for label in ("eager PyTorch ar", "eager PyTorch eagle", "eager PyTorch vvs"):
        assert f"| {label} | 1 |" in report
    assert "- torch.compile is left out: no compiler." in report
    assert re.search("eager PyTorch ar takes .* times as long as ar, with the same settings", report)
    assert re.search("eager PyTorch vvs takes .* times as long as vvs as published, with the same", report)


def test_what_is_as_published_drafts_with_the_guidance_of_the_target(
    tiny_bundle: Path, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)
    monkeypatch.setitem(pipeline.bundle.manifest.defaults, "draft_cfg_ratio", 2.0)
    assert pipeline.configure("vvs").draft_cfg_ratio == 2
    runners, _ = eager_runners(tiny_recipe, pipeline)
    ratios = {runner.label: runner.config["draft_cfg_ratio"] for runner in runners}
    assert ratios["vvs as published"] == ratios["eager PyTorch vvs"] == 1


def test_without_pytorch_its_loops_are_left_out(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vvs.benchmarks.baselines.find_spec", lambda name: None)
    runners, (note,) = eager_runners(Path("no.toml"), Pipeline.from_bundle(tiny_bundle))
    assert runners == []
    assert "PyTorch is not installed" in note


def test_a_recipe_of_another_model_is_refused(tiny_bundle: Path, tiny_recipe: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = tiny_recipe.parent / "target.safetensors"
    state = {k: v for k, v in load_file(path).items() if not k.startswith("model.layers.1.")}
    path.unlink()
    save_file(state, path)
    with pytest.raises(SettingsError, match="but the bundle's is"):
        eager_runners(tiny_recipe, Pipeline.from_bundle(tiny_bundle))
