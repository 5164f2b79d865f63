"""The loop over an engine that answers at once; growth; stacks. Nothing here asserts a time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from vvs.benchmarks.idle_engine import IdleEngine
from vvs.benchmarks.loop_cost import (
    BATCHES,
    CASES,
    GRIDS,
    VOCABULARIES,
    Case,
    Cost,
    exponent,
    growth,
    measure,
    rows,
)
from vvs.benchmarks.stacks import collapsed, draw, sampled
from vvs.errors import SettingsError
from vvs.statistics import StepKind
from vvs.tree_shape import TreeShape

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("mode", ["ar", "eagle", "vvs"])
def test_every_mode_decodes_on_the_idle_engine(mode: str) -> None:
    cost = measure(Case(mode, vocabulary=128, batch=2, grid=6))
    verified, skipped = cost.steps[StepKind.VERIFY], cost.steps[StepKind.SKIP]
    assert verified > 0
    assert (skipped > 0) == (mode == "vvs")
    assert cost.verified > 0
    assert cost.image > 0
    if mode == "ar":
        assert verified == 35
    (row,) = rows([cost])
    assert row["mode"] == mode
    assert cost.to_dict()["case"]["vocabulary"] == 128


@pytest.mark.parametrize(
    "shape", [TreeShape(2, 3, 6), TreeShape(4, 3, 12), TreeShape(10, 4, 58), TreeShape(1, 0, 1)]
)
def test_idle_trees_have_their_shape(shape: TreeShape) -> None:
    session = IdleEngine(4, 32, shape).open(1)
    parents, depth, ancestors = session._grown[shape.name]
    assert len(parents) == shape.nodes
    assert depth.max() == min(shape.longest_path - 1, shape.total)
    assert np.bincount(parents[1:]).max() <= shape.k
    assert (ancestors.sum(1) == depth + 1).all()


def test_the_idle_engine_draws_nothing() -> None:
    with pytest.raises(SettingsError, match="draws no images"):
        IdleEngine(4, 32, TreeShape(1, 0, 1)).decode_image(np.zeros((1, 16), np.int64))


def test_growth_is_a_power() -> None:
    assert exponent([1, 2, 4], [3, 6, 12]) == pytest.approx(1)
    assert exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)


def cost_of(case: Case) -> Cost:
    verify = 5.0 * case.vocabulary * case.batch**2
    steps = {StepKind.VERIFY: case.grid**2, StepKind.SKIP: 0}
    return Cost(case, steps, {StepKind.VERIFY: verify, StepKind.SKIP: 0.0}, 1, 1, 1)


def test_growth_of_the_cases_that_are_measured() -> None:
    assert growth(map(cost_of, CASES)) == pytest.approx(
        {"step with vocabulary": 1, "step with batch": 2, "image with tokens": 1}
    )
    assert len(VOCABULARIES) == len(BATCHES) == len(GRIDS)


def spin(limit: int) -> int:
    return sum(i * i for i in range(limit))


def test_stacks_are_counted_written_and_drawn(tmp_path: Path) -> None:
    result, stacks = sampled(lambda: [spin(20_000) for _ in range(50)], package=__name__)
    assert len(result) == 50
    assert stacks.total() > 0
    assert any(stack[-1].endswith("genexpr>") for stack in stacks)
    made = Counter({("a.f",): 1, ("a.f", "b.g"): 3})
    assert collapsed(made) == "a.f 1\na.f;b.g 3\n"
    draw(made, tmp_path / "s.png", "title")
    assert [path.name for path in tmp_path.iterdir()] == ["s.png"]
