"""Drafting from shared noise: what is foreseen of the target's draw, and the trees that come of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vvs.tree_shape import TreeShape

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet


def test_what_is_foreseen_is_right_about_a_target_that_is_off_by_gumbel_noise() -> None:
    """The target draws argmax(logs + noise + doubt): as often as foreseen, token by token."""
    from vvs.export.draft_tree import DOUBT, foreseen
    from vvs.export.graphs import gumbel_noise

    rng, samples, V = torch.Generator().manual_seed(0), 60_000, 6
    logs = torch.log_softmax(torch.randn((1, 1, V), generator=rng), -1)
    noise = gumbel_noise((1, V), rng)
    said = foreseen(logs, noise, torch.ones(1))[0, 0].exp()
    drawn = (logs[0] + noise + DOUBT * gumbel_noise((samples, V), rng)).argmax(-1)
    counted = torch.bincount(drawn, minlength=V) / samples
    torch.testing.assert_close(counted, said, atol=0.008, rtol=0)
    assert said.max() > 0.05 + logs.exp().max() or said.argmax() != logs.argmax()


def test_the_tokens_of_a_level_are_the_best_under_its_noise(tiny_models: ModelSet) -> None:
    from vvs.export.graphs import DraftTreeGraph

    coupled, plain = TreeShape(4, 0, 4, coupled=True), TreeShape(96, 0, 96)
    graphs = [
        DraftTreeGraph(tiny_models.drafter, tiny_models.target, shape, "t") for shape in (coupled, plain)
    ]
    inputs = graphs[0].sample(3, 2, torch.Generator().manual_seed(1))
    place = [spec.name for spec in graphs[0].inputs].index("noise")
    noise = inputs[place]
    with torch.no_grad():
        tokens = graphs[0](*inputs)[0][:, 1:]
        everything = graphs[1](*inputs[:place], *inputs[place + 1 :])
    logs = torch.full((3, 96), float("-inf")).scatter(1, everything[0][:, 1:], everything[4][:, 1:])
    assert torch.equal(tokens, (logs + noise[:, 0]).topk(4).indices)


def test_without_noise_a_greedy_coupled_tree_is_the_tree(tiny_models: ModelSet) -> None:
    from vvs.export.graphs import DraftTreeGraph

    shapes = [TreeShape(3, 2, 8, coupled=True), TreeShape(3, 2, 8)]
    coupled, plain = (DraftTreeGraph(tiny_models.drafter, tiny_models.target, shape, "t") for shape in shapes)
    names = [spec.name for spec in coupled.inputs]
    inputs = list(coupled.sample(2, 3, torch.Generator().manual_seed(2)))
    inputs[names.index("noise")].zero_()
    inputs[names.index("temperature")].zero_()
    without = [tensor for name, tensor in zip(names, inputs, strict=True) if name != "noise"]
    with torch.no_grad():
        for got, expected in zip(coupled(*inputs), plain(*without), strict=True):
            torch.testing.assert_close(got, expected)
