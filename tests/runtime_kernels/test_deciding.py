"""The similarity, decide and skip kernels against policies and selectors in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import recorded
from device_state import DeviceState
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import tree_from_mask
from test_skipping import tree_of_candidates
from test_tree import TRACES
from toy_engine import grow_tree

from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.runtime.kernels.state import Counter, Decision, Fault, Phase
from vvs.runtime.kernels.table import DECIDE, SIMILARITY, SKIP
from vvs.selection import MostConfidentPath, PathSelector, RandomPath, SampledPath
from vvs.skipping import Dynamic, Never, Share, SkipPolicy, StepView, Uniform, decide, path_similarity
from vvs.tree import DraftTree
from vvs.tree_shape import TreeShape
from vvs.uniforms import RecordedUniforms

V = 23
CODEBOOK = Codebook.from_latents(np.random.default_rng(0).normal(size=(V, 3)), 2)


class Case(NamedTuple):
    """One request before its decision."""

    policy: SkipPolicy
    selector: PathSelector
    tree: DraftTree
    steps: int
    emitted: int
    phase: Phase
    uniform: float


def decided(cases: Sequence[Case], codebook: Codebook, image_tokens: int = 64) -> DeviceState:
    """Run the decision of a batch, and take the skips."""
    nodes = max(case.tree.nodes for case in cases)
    longest = max(case.tree.paths.shape[1] for case in cases)
    configs = [GenerationConfig(tree="tree", skipping=case.policy, selector=case.selector) for case in cases]
    state = DeviceState(configs, codebook, nodes=nodes, longest_path=longest, image_tokens=image_tokens)
    for i, case in enumerate(cases):
        root = int(case.tree.tokens[0])
        state.stand(i, known=[*[0] * case.emitted, root], steps=case.steps, phase=case.phase)
        state.give_tree(i, case.tree)
        state.give_uniforms(i, [case.uniform])
    state.set_counters(0, kept=9)
    state.launch(SIMILARITY)
    state.launch(DECIDE)
    state.launch(SKIP)
    return state


def check(state: DeviceState, i: int, case: Case, codebook: Codebook) -> None:
    """Compare with what numpy decides."""
    view = StepView(case.steps, case.emitted, case.phase is Phase.SKIPPED, case.tree, codebook)
    stream = RecordedUniforms([case.uniform])
    wanted = decide(case.policy, view)
    path, length = case.selector.choose(case.tree, stream) if wanted else (0, 0)
    skips = length > 0
    assert state.counter(i, Counter.DECISION) == (Decision.SKIP if skips else Decision.VERIFY)
    assert state.counter(i, Counter.CURSOR) == stream.used
    assert state.counter(i, Counter.KEPT) == 0
    if isinstance(case.policy, Dynamic):
        assert state["similarity"][i] == pytest.approx(path_similarity(case.tree, codebook), abs=1e-12)
    if wanted:
        assert state.counter(i, Counter.CHOSEN_PATH) == path
        assert state.counter(i, Counter.CHOSEN) == length
    if skips:
        nodes = case.tree.paths[path, : length + 1]
        known = case.emitted + 1
        assert state["taken"][i, : length + 1].tolist() == nodes.tolist()
        assert state["known"][i, known : known + length].tolist() == case.tree.tokens[nodes[1:]].tolist()
        assert state.counter(i, Counter.TAKEN) == state.counter(i, Counter.PENDING) == length
        assert state.counter(i, Counter.CHAIN) == length
        assert state.counter(i, Counter.EMITTED) == case.emitted + length
        assert state.counter(i, Counter.PHASE) == Phase.SKIPPED
    assert state.counter(i, Counter.STEPS) == case.steps + skips
    assert state.counter(i, Counter.KNOWN) == case.emitted + 1 + length


def test_recorded_selections_and_similarities() -> None:
    arrays, codebook = recorded.data("skip_cases"), recorded.codebook()
    count = int(arrays["count"])
    cases = [
        Case(
            Dynamic(-1),
            RandomPath(),
            tree_of_candidates(arrays[f"{i}_candidates"]),
            3,
            9,
            Phase.VERIFIED,
            float(arrays[f"{i}_uniforms"][0]),
        )
        for i in range(count)
    ]
    state = decided(cases, codebook)
    for i in range(count):
        assert state.counter(i, Counter.CHOSEN_PATH) == arrays[f"{i}_path"]
        assert state.counter(i, Counter.CHOSEN) == arrays[f"{i}_accept"]
        assert state["similarity"][i] == pytest.approx(float(arrays[f"{i}_similarity"]), abs=1e-6)
        check(state, i, cases[i], codebook)


@pytest.mark.parametrize("trace", TRACES)
def test_recorded_decisions(trace: str) -> None:
    """All steps of a recorded run in one batch: skipped exactly when they were, by as many tokens."""
    arrays, codebook = recorded.golden(f"trace_{trace}"), recorded.codebook()
    policy = recorded.config_of(recorded.settings_of(arrays)).skipping
    cases, emitted, phase = [], 0, Phase.PREFILLED
    for step, skipped in enumerate(arrays["kind"].tolist()):
        tree = tree_from_mask(*(arrays[f"tree_{name}"][step] for name in ("tokens", "positions", "mask")))
        path, accept = int(arrays["path"][step]), int(arrays["accept"][step])
        middle = (path + 0.5) / len(tree.paths)
        cases.append(Case(policy, RandomPath(), tree, step, emitted, phase, middle))
        emitted += accept + (not skipped)
        phase = Phase.SKIPPED if skipped else Phase.VERIFIED
    state = decided(cases, codebook, image_tokens=512)
    for i, (skipped, accept) in enumerate(zip(arrays["kind"], arrays["accept"], strict=True)):
        assert state.counter(i, Counter.DECISION) == (Decision.SKIP if skipped else Decision.VERIFY)
        if skipped:
            assert state.counter(i, Counter.TAKEN) == accept


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    depth = draw(st.integers(0, 3))
    tree = grow_tree(rng, TreeShape(3, depth, draw(st.integers(1, 3 + 9 * depth))), V, int(rng.integers(V)))
    scores = rng.normal(size=tree.nodes).astype(np.float32) - 3
    if draw(st.booleans()):
        scores = np.round(scores)  # ties
    scores[rng.random(tree.nodes) < draw(st.sampled_from([0.0, 0.2]))] = -np.inf
    scores[0] = 0
    return Case(
        draw(
            st.one_of(
                st.just(Never()),
                st.builds(Uniform, st.integers(2, 5)),
                st.builds(Dynamic, st.floats(-1, 1)),
                st.builds(Share, st.floats(0, 1, exclude_max=True)),
            )
        ),
        draw(
            st.one_of(
                st.builds(RandomPath, st.booleans()),
                st.builds(SampledPath, st.booleans(), st.sampled_from([0.01, 0.5, 1.0, 3.0])),
                st.builds(MostConfidentPath, st.booleans()),
            )
        ),
        DraftTree(tree.tokens, tree.parents, tree.depth, tree.ancestors, scores),
        draw(st.integers(0, 30)),
        draw(st.integers(0, 30)),
        draw(st.sampled_from([Phase.VERIFIED, Phase.SKIPPED])),
        draw(st.floats(0, 1, exclude_max=True)),
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(cases(), min_size=1, max_size=4))
def test_random_batches(batch: list[Case]) -> None:
    state = decided(batch, CODEBOOK)
    for i, case in enumerate(batch):
        check(state, i, case, CODEBOOK)


def skip_everything() -> Case:
    tree = grow_tree(np.random.default_rng(0), TreeShape(3, 2, 20), V, 0)
    return Case(Uniform(2), RandomPath(), tree, 1, 9, Phase.VERIFIED, 0.3)


def test_who_is_complete_or_has_a_fault_is_left_alone() -> None:
    state = decided([skip_everything()] * 3, CODEBOOK)
    state.set_counters(0, phase=Phase.COMPLETE)
    state.set_counters(1, fault=Fault.TREE)
    before = state["known"].copy()
    state.launch(DECIDE)
    state.launch(SKIP)
    assert [state.counter(i, Counter.DECISION) for i in range(2)] == [Decision.IDLE] * 2
    assert (state["known"][:2] == before[:2]).all()


def test_a_skip_may_complete_the_image() -> None:
    case = skip_everything()
    state = decided([case], CODEBOOK, image_tokens=11)
    assert state.counter(0, Counter.DECISION) == Decision.SKIP
    assert state.counter(0, Counter.PHASE) == Phase.COMPLETE


def test_running_out_of_uniform_numbers_is_a_fault() -> None:
    state = decided([skip_everything()], CODEBOOK)
    state.stand(0, known=[0] * 10)
    state.set_counters(0, cursor=state.sizes.uniform_capacity)
    state.launch(DECIDE)
    assert state.counter(0, Counter.FAULT) == Fault.UNIFORMS
    assert state.counter(0, Counter.DECISION) == Decision.IDLE
