"""Drafters of more layers than the published one: trees against whole sequences, and their checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vvs.errors import CheckpointError, SettingsError
from vvs.tree_shape import TreeShape

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from vvs.export.draft_tree import DraftTree
    from vvs.export.model_set import ModelSet

SCALE = 2.5


class Sequence:
    """A random sequence of one request, its features and the tokens that follow them."""

    def __init__(self, models: ModelSet, length: int) -> None:
        geometry = models.geometry
        self.models = models
        rng = torch.Generator().manual_seed(5)
        self.features = torch.randn(2, length, geometry.hidden, generator=rng)
        self.tokens = torch.randint(geometry.vocabulary, (1, length), generator=rng).expand(2, -1)

    def log_probabilities(self, predicted: torch.Tensor) -> torch.Tensor:
        """Of the token after the last row of ``predicted [2, L, D]``."""
        scale = torch.tensor([SCALE])
        logits = self.models.target.guided_logits(predicted[:, -1:], scale)
        return torch.log_softmax(logits[0, 0], -1)

    def predict(self, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """What the drafter foresees over a whole sequence."""
        return self.models.drafter.whole_sequence(features, tokens)


@torch.no_grad()
def draft(
    tree: DraftTree, sequence: Sequence, stretches: list[int], padding: int
) -> tuple[torch.Tensor, ...]:
    """The tree after the whole sequence, consumed in stretches, each with padding after it."""
    geometry, layers = sequence.models.geometry, sequence.models.drafter.config.layers
    shape = (2, geometry.heads, geometry.capacity, geometry.head_dim)
    caches = [torch.zeros(shape) for _ in range(2 * layers)]
    past, out = 0, ()
    for stretch in stretches:
        end, width = past + stretch, stretch + padding
        features, tokens = torch.randn(2, width, geometry.hidden), torch.zeros(2, width, dtype=torch.int64)
        features[:, :stretch], tokens[:, :stretch] = (
            sequence.features[:, past:end],
            sequence.tokens[:, past:end],
        )
        positions = (past + 1 + torch.arange(width)).expand(2, -1)
        counts = torch.full((2,), stretch), torch.full((2,), past)
        heat = torch.tensor([SCALE]), torch.ones(1), torch.ones(1)
        out = tree(features, tokens, tokens[:1, stretch - 1], positions, *counts, *heat, *caches)
        for cache, new in zip(caches, out[-len(caches) :], strict=True):
            cache[:, :, past:end] = new[:, :, :stretch]
        past = end
    return out[: -len(caches)]


@pytest.mark.parametrize("stretches", [[13], [9, 1, 3], [6, 7]])
@pytest.mark.parametrize("padding", [0, 2])
def test_trees_are_those_of_whole_sequences(
    deep_models: ModelSet, stretches: list[int], padding: int
) -> None:
    from vvs.export.draft_tree import DraftTree

    tree = DraftTree(deep_models.drafter, deep_models.target, TreeShape(3, 1, 12))
    sequence = Sequence(deep_models, 13)
    tokens, parents, _, _, scores = draft(tree, sequence, stretches, padding)
    with torch.no_grad():
        predicted = sequence.predict(sequence.features, sequence.tokens)
        first = sequence.log_probabilities(predicted).topk(3)
        torch.testing.assert_close(tokens[0, 1:4], first.indices)
        torch.testing.assert_close(scores[0, 1:4], first.values, rtol=1e-4, atol=1e-4)
        for place, (token, score) in enumerate(zip(first.indices, first.values, strict=True)):
            features = torch.cat([sequence.features, predicted[:, -1:]], dim=1)
            after = torch.cat([sequence.tokens, token.expand(2, 1)], dim=1)
            second = sequence.log_probabilities(sequence.predict(features, after)).topk(3)
            of_token = parents[0] == place + 1
            torch.testing.assert_close(tokens[0, of_token], second.indices)
            torch.testing.assert_close(scores[0, of_token], score + second.values, rtol=1e-4, atol=1e-4)


def test_added_layers_at_first_change_nothing(tiny_models: ModelSet) -> None:
    from vvs.export.training.deepened import deepened

    sequence = Sequence(tiny_models, 9)
    deeper = deepened(tiny_models.drafter, 3)
    assert len(deeper.layers) == 3
    with torch.no_grad():
        before = sequence.predict(sequence.features, sequence.tokens)
        assert torch.equal(deeper.whole_sequence(sequence.features, sequence.tokens), before)
        assert torch.equal(deepened(deeper, 3).whole_sequence(sequence.features, sequence.tokens), before)
    with pytest.raises(SettingsError, match="that is there has 3 layers, so it cannot go on with 2"):
        deepened(deeper, 2)


def test_layers_are_counted_and_checked(tmp_path: Path, tiny_recipe: Path, deep_models: ModelSet) -> None:
    from safetensors.torch import save_file

    from vvs.export.plan import sizes_of
    from vvs.export.recipe import load_recipe

    folder = tmp_path / "deep"
    folder.mkdir()
    save_file(deep_models.drafter.state_dict(), folder / "model.safetensors")
    text = tiny_recipe.read_text()
    tiny_recipe.write_text(text.replace("[weights]\n", '[weights]\ndrafter = "deep"\n'))
    models = load_recipe(tiny_recipe).models()
    assert models.drafter.config.layers == 2
    assert sizes_of(models.drafter.config) == "2 layers, 32 wide, FFN 64, with bias"
    for name, tensor in deep_models.drafter.state_dict().items():
        assert torch.equal(models.drafter.state_dict()[name], tensor)
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 1}))
    with pytest.raises(CheckpointError, match="says num_hidden_layers is 1, but its tensors make it 2"):
        load_recipe(tiny_recipe).models()
