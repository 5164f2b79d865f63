"""The stages: losses are finite, gradients reach what is trained, and tiny models learn a little."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from vvs.errors import SettingsError
from vvs.export.drafter import Drafter, DrafterConfig
from vvs.export.llamagen import Target, TargetConfig, WordConditioning
from vvs.export.training.classifier import Classifier
from vvs.export.training.classifier_stage import ClassifierStage
from vvs.export.training.drafter_stage import DrafterStage, FeatureMix
from vvs.export.training.garments import Garments, words
from vvs.export.training.target_stage import GarmentExamples, TargetStage
from vvs.export.training.vocabulary import build_tokenizer
from vvs.export.training.vq_stage import VQStage
from vvs.export.vq import VQConfig, VQTokenizer
from vvs.geometry import Geometry

GEOMETRY = Geometry(16, 32, 8, 8, 1, 2, 8, 16, 2, 32)


@pytest.fixture(scope="module")
def data() -> Garments:
    rng = np.random.default_rng(0)
    grey = np.zeros((40, 32, 32), np.uint8)
    grey[:, 6:26, 10:22] = rng.integers(80, 255, (40, 1, 1))
    return Garments(torch.from_numpy(grey), torch.from_numpy(rng.integers(0, 10, 40)))


@pytest.fixture(scope="module")
def source(data: Garments) -> GarmentExamples:
    torch.manual_seed(0)
    return GarmentExamples(data, vq(), build_tokenizer(8), 8)


def vq() -> VQTokenizer:
    return VQTokenizer(VQConfig(32, 8, 32, (1, 1), 1, 32))


def target() -> Target:
    made = Target(TargetConfig(GEOMETRY, WordConditioning(len(words()) + 2, 8), 32))
    made.initialise()
    return made


def trained(module: nn.Module) -> set[str]:
    """Parameters that a backward pass reached with something other than zeros."""
    return {name for name, p in module.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}


def test_the_tokenizer_stage_trains_all_but_its_codes_which_follow_the_latents(data: Garments) -> None:
    stage = VQStage(vq(), data)
    before = stage.tokenizer.quantize.embedding.weight.clone()
    stage.losses(4, np.random.default_rng(0))["loss"].backward()
    every = {name for name, p in stage.module.named_parameters() if p.requires_grad}
    assert trained(stage.module) == every
    assert "tokenizer.quantize.embedding.weight" not in every
    after = stage.tokenizer.quantize.embedding.weight
    assert not torch.equal(before, after)
    assert torch.allclose(after.norm(dim=1), torch.ones(32), atol=1e-5)


def test_an_untrained_target_is_as_uncertain_as_can_be(source: GarmentExamples) -> None:
    stage = TargetStage(target(), source)
    losses = stage.losses(8, np.random.default_rng(0))
    assert float(losses["loss"].detach()) == pytest.approx(np.log(32), abs=1e-3)
    losses["loss"].backward()
    assert "lm_head.weight" in trained(stage.target)


def test_the_target_learns_and_every_parameter_takes_part(source: GarmentExamples) -> None:
    stage = TargetStage(target(), source)
    optimizer = torch.optim.Adam(stage.target.parameters(), 0.01)
    for step in range(12):
        optimizer.zero_grad()
        loss = stage.losses(8, np.random.default_rng(step))["loss"]
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < np.log(32) - 0.3
    # q and k of prompt rows vanish; everything else is reached, the dropped prompts' embedding included.
    assert trained(stage.target) == {name for name, _ in stage.target.named_parameters()}


def test_the_drafter_stage_leaves_the_target_alone(source: GarmentExamples) -> None:
    frozen = target()
    nn.init.normal_(frozen.lm_head.weight)
    stage = DrafterStage(Drafter(DrafterConfig(GEOMETRY, 32)), frozen, source, FeatureMix(), cfg_scale=2.0)
    losses = stage.losses(8, np.random.default_rng(0))
    losses["loss"].backward()
    assert trained(stage.drafter) == {name for name, _ in stage.drafter.named_parameters()}
    assert not trained(frozen)
    assert 0 <= float(losses["agree"]) <= 1


def test_drafters_are_judged_by_guided_distributions(source: GarmentExamples) -> None:
    frozen = target()
    nn.init.normal_(frozen.lm_head.weight)
    features = torch.randn(4, 30, 16, generator=torch.Generator().manual_seed(1))
    wrong = features.clone()
    wrong[:2] += 0.05
    stages = [
        DrafterStage(Drafter(DrafterConfig(GEOMETRY, 32)), frozen, source, FeatureMix(), cfg_scale)
        for cfg_scale in (1.0, 6.0)
    ]
    small, large = (stage._logits(wrong) - stage._logits(features) for stage in stages)
    assert small.shape == (2, 30 - 7, 32)
    torch.testing.assert_close(large, 6 * small, rtol=1e-3, atol=1e-3)


def test_mixed_features_are_foreseen_or_stale_and_never_in_the_prompt(source: GarmentExamples) -> None:
    stage = DrafterStage(
        Drafter(DrafterConfig(GEOMETRY, 32)),
        target(),
        source,
        FeatureMix(predicted=0.4, stale=0.4),
        cfg_scale=2.0,
    )
    length, R = 8 + 255, 12
    features = torch.arange(length).float().reshape(1, -1, 1).expand(2 * R, -1, 16)
    both = stage._mixed(features, 1000 + features, np.random.default_rng(0))[..., 0]
    mixed = both[:R]
    assert torch.equal(mixed, both[R:])  # a request's guidance rows are stale together
    own = torch.arange(length).float()
    assert torch.equal(mixed[:, :8], own[:8].expand(R, -1))
    foreseen = mixed == 1000 + own - 1
    assert 0.1 < (mixed == own)[:, 8:].float().mean() < 0.3
    holds = ~foreseen.any(dim=1)
    assert 0 < int(holds.sum()) < R
    assert 0.3 < foreseen[~holds, 8:].float().mean() < 0.5
    shifts = (own - mixed[~holds])[~foreseen[~holds] & (mixed[~holds] != own)].unique()
    assert len(shifts) == 1
    assert 1 <= int(shifts[0]) <= 4
    for row in mixed[holds]:
        fresh = row == own
        last_fresh = torch.where(fresh, own, 0).cummax(dim=0).values
        assert torch.equal(row, last_fresh)


@pytest.mark.parametrize("mix", [{"predicted": 0.8, "stale": 0.3}, {"stale": -0.1}, {"stale_shift": 0}])
def test_impossible_mixes(mix: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        FeatureMix(**mix)  # type: ignore[arg-type]


def test_the_classifier_stage_trains_every_parameter(data: Garments) -> None:
    stage = ClassifierStage(Classifier(), data)
    stage.losses(8, np.random.default_rng(0))["loss"].backward()
    assert trained(stage.classifier) == {name for name, _ in stage.classifier.named_parameters()}
