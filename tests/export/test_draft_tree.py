"""Drafting as a module: what is taken for granted about trees of some shapes, against the general way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vvs.tree_shape import TreeShape

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet


@pytest.mark.parametrize("shape", [TreeShape(3, 0, 3), TreeShape(5, 0, 2), TreeShape(3, 1, 12)])
def test_nodes_that_need_no_ranking(
    tiny_models: ModelSet, shape: TreeShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all trees branch alike, ranking the nodes and finding their parents comes to the same tree."""
    from vvs.export.graphs import DraftTreeGraph

    assert tiny_models.drafter is not None
    graph = DraftTreeGraph(tiny_models.drafter, tiny_models.target, shape, shape.name)
    assert shape.branches_alike
    for seed in range(3):
        inputs = graph.sample(2, 4, torch.Generator().manual_seed(seed))
        with torch.no_grad():
            short = graph(*inputs)
            with monkeypatch.context() as general:
                general.setattr(TreeShape, "branches_alike", False)
                ranked = graph(*inputs)
        assert len(short) == len(ranked) == 7
        for got, expected in zip(short, ranked, strict=True):
            assert torch.equal(got, expected)


def test_trees_that_differ_are_ranked() -> None:
    """A tree that keeps some of its scored nodes, or whose frontier is chosen, has no fixed places."""
    assert not TreeShape(3, 1, 11).branches_alike
    assert not TreeShape(2, 2, 10).branches_alike


def test_one_row_of_many() -> None:
    from vvs.export.layers import picked

    rows = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    place = torch.tensor([[2], [0]])
    assert torch.equal(picked(rows, place), torch.stack([rows[0, :, 2:3], rows[1, :, :1]]))
    assert torch.equal(picked(rows[:, 0], place), torch.stack([rows[0, 0, 2:3], rows[1, 0, :1]]))
