"""Whole recorded generations, replayed decision by decision with their own random numbers."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import recorded
from golden_engine import GoldenEngine, GoldenSession
from recorded import config_of, settings_of, tree_from_mask

from vvs.decoding import Decoder
from vvs.engine import DraftResult, DraftRows
from vvs.statistics import StepKind
from vvs.step import StepEvent, StepRecord
from vvs.tree import DraftTree
from vvs.uniforms import RecordedUniforms

FEW_STEPS = 12


@pytest.fixture(scope="module")
def engine() -> GoldenEngine:
    return GoldenEngine(recorded.data("target_weights"), recorded.data("drafter_weights"))


def compare(record: StepRecord, trace: dict[str, np.ndarray]) -> bool:
    """Fail unless the step is the recorded one; return whether its tree is so to the last detail.

    Two nodes of nearly equal score may change places, which is only tolerated where it changes nothing.
    """
    step = record.step
    assert (record.kind is StepKind.SKIP) == trace["kind"][step]
    assert record.accept == trace["accept"][step]
    assert record.path == trace["path"][step]
    assert (record.tree.tokens == trace["tree_tokens"][step]).all()
    assert (record.tree.depth == trace["tree_positions"][step]).all()
    tree = recorded_tree(trace, step)
    return bool((record.tree.ancestors == tree.ancestors).all() and (record.tree.paths == tree.paths).all())


def recorded_tree(trace: dict[str, np.ndarray], step: int) -> DraftTree:
    return tree_from_mask(*(trace[f"tree_{name}"][step] for name in ("tokens", "positions", "mask")))


def replay(engine: GoldenEngine, trace: dict[str, np.ndarray], steps: int | None = None) -> list[StepEvent]:
    uniforms = RecordedUniforms(trace["uniforms"])
    conditioning = {name: trace[name] for name in ("caption", "caption_mask")}
    run = Decoder(engine, recorded.codebook()).run(conditioning, [config_of(settings_of(trace))], [uniforms])
    with closing(run):
        return list(islice(run, None if steps is None else steps + 1))


def test_a_whole_generation(engine: GoldenEngine) -> None:
    trace = recorded.data("trace_vvs_uniform2")
    uniforms = RecordedUniforms(trace["uniforms"])
    conditioning = {name: trace[name] for name in ("caption", "caption_mask")}
    events: list[StepEvent] = []
    tokens, (statistics,) = Decoder(engine, recorded.codebook()).generate(
        conditioning, [config_of(settings_of(trace))], [uniforms], events.append
    )
    assert (tokens[0] == trace["tokens"]).all()
    assert all(compare(record, trace) for event in events for record in event.records)
    # The published loop takes a step more: it does not count the root among the tokens it has.
    assert statistics.steps == len(trace["kind"]) - 1
    assert trace["kind"][-1]
    assert uniforms.remaining == 1


@pytest.mark.parametrize("name", ["eagle", "lantern", "lantern_pp", "vvs_dynamic", "vvs_uniform5"])
def test_the_first_steps_of_every_recording(engine: GoldenEngine, name: str) -> None:
    trace = recorded.golden(f"trace_{name}")
    events = replay(engine, trace, FEW_STEPS)
    assert len(events) == FEW_STEPS + 1
    assert all(compare(record, trace) for event in events for record in event.records)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eagle", "lantern", "lantern_pp", "vvs_dynamic", "vvs_uniform5"])
def test_every_recording_to_the_end(engine: GoldenEngine, name: str) -> None:
    trace = recorded.golden(f"trace_{name}")
    records = [record for event in replay(engine, trace) for record in event.records]
    assert sum(not compare(record, trace) for record in records) <= 1
    assert len(trace["kind"]) - 2 <= len(records) < len(trace["kind"])


class RecordedTrees(GoldenSession):
    """Drafts as the engine does, checks what it can against the recording, and returns the recorded tree.

    When a nucleus holds fewer tokens than a node may have children, the rest have log-probability -inf and
    which of them fill the tree is an accident of how top-k breaks ties. A nucleus of one token gives a child
    the very score of the parent, and where these two tie for the last place the recording has the child
    without its parent. So only the nodes better than the worst finite one compare.
    """

    trace: dict[str, np.ndarray]
    step = 0

    def draft(self, rows: np.ndarray, inputs: DraftRows, tree: str) -> DraftResult:
        own = super().draft(rows, inputs, tree)
        theirs = recorded_tree(self.trace, self.step)
        mine = DraftTree(*(array[0] for array in own))
        certain = np.flatnonzero(mine.scores > mine.scores[np.isfinite(mine.scores)].min())

        def branch(tree: DraftTree, node: int) -> tuple[int, ...]:
            return tuple(tree.tokens[tree.ancestors[node]].tolist())

        expected = {branch(theirs, node) for node in range(theirs.nodes)}
        assert {branch(mine, node) for node in certain} <= expected
        self.step += 1
        fields = (theirs.tokens, theirs.parents, theirs.depth, theirs.ancestors, theirs.scores)
        return DraftResult(*(array[None] for array in fields))


def test_a_recording_with_a_nucleus_narrower_than_the_tree(
    engine: GoldenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = recorded.golden("trace_vvs_uniform3_topp")
    monkeypatch.setattr(RecordedTrees, "trace", trace, raising=False)
    monkeypatch.setattr(engine, "open", lambda requests: RecordedTrees(engine, requests))
    records = [record for event in replay(engine, trace) for record in event.records]
    assert all(compare(record, trace) for record in records)
    assert len(records) == len(trace["kind"]) - 2
