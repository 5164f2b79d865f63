"""Dequantised weights: plain modules compute what those over int8 weights do."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from vvs.export.dequantised import dequantise
from vvs.export.graphs import DraftTreeGraph, TargetGraph
from vvs.export.precision import Numerics
from vvs.export.rounding import in_dtypes, with_rounded_products

if TYPE_CHECKING:
    from vvs.export.graphs import Graph
    from vvs.export.model_set import ModelSet


def graphs(models: ModelSet) -> list[Graph]:
    drafts = [DraftTreeGraph(models.drafter, models.target, s, name) for name, s in models.trees.items()]
    return [TargetGraph(models.target), *drafts]


@pytest.fixture
def own_models(tiny_models: ModelSet) -> ModelSet:
    target, drafter = copy.deepcopy(tiny_models.target), copy.deepcopy(tiny_models.drafter)
    return replace(tiny_models, target=target, drafter=drafter)


@pytest.mark.parametrize("numerics", [Numerics("int8"), Numerics("int8-bf16", ("0", "head"))])
@torch.inference_mode()
def test_it_computes_what_int8_products_do(own_models: ModelSet, numerics: Numerics) -> None:
    typed = in_dtypes(own_models, numerics)
    rounded = graphs(with_rounded_products(typed, numerics))
    untouched = [graph(*graph.sample(2, 3, torch.Generator().manual_seed(0))) for graph in graphs(typed)]
    expected = [graph(*graph.sample(2, 3, torch.Generator().manual_seed(0))) for graph in rounded]
    plain = graphs(dequantise(typed, numerics))
    for graph, outputs, before in zip(plain, expected, untouched, strict=True):
        found = graph(*graph.sample(2, 3, torch.Generator().manual_seed(0)))
        assert not all(torch.equal(a, b) for a, b in zip(found, before, strict=True))
        if isinstance(graph, TargetGraph):
            assert all(torch.equal(a, b) for a, b in zip(found, outputs, strict=True))
        else:  # the halves of ``fc`` are added up in another order
            torch.testing.assert_close(found[-2:], outputs[-2:], rtol=0, atol=torch.finfo(numerics.dtype).eps)


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_nothing_else_is_changed(own_models: ModelSet, name: str) -> None:
    typed = in_dtypes(own_models, Numerics(name))
    before = {key: tensor.clone() for key, tensor in typed.target.state_dict().items()}
    after = dequantise(typed, Numerics(name)).target.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
