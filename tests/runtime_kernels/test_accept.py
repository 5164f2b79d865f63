"""The accept kernel against the rules in numpy: recorded cases, random ones, batches, ties."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import recorded
from device_state import DeviceState
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import rule_of, settings_of, tree_from_paths
from toy_engine import grow_tree

from vvs.acceptance import AcceptanceRule, Exact, Lantern, LanternPlusPlus, walk, walk_coupled
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.noise import GumbelNoise
from vvs.runtime.kernels.host_threads import run_threaded
from vvs.runtime.kernels.state import Counter, Decision, Fault, Phase
from vvs.runtime.kernels.table import ACCEPT
from vvs.sampling import Sampling, process, sample
from vvs.tree import DraftTree, root_only
from vvs.tree_shape import TreeShape
from vvs.uniforms import RecordedUniforms, UniformStream

RECORDED_CASES = 36
TIE = 1e-14
"""Probabilities closer than this are one in exact arithmetic, or might as well be."""


class Case(NamedTuple):
    """One request that verifies."""

    config: GenerationConfig
    tree: DraftTree
    logits: np.ndarray  # [N, V]
    uniforms: Sequence[float]
    chain: int = 0


def accepted(cases: Sequence[Case], codebook: Codebook, padding: int = 0, threads: int = 0) -> DeviceState:
    """Run the kernel on a batch, with real threads if asked for; rows that no request has are not finite."""
    nodes = max(case.tree.nodes for case in cases)
    longest = max(case.tree.paths.shape[1] for case in cases)
    rows = max(case.chain + case.tree.nodes for case in cases) + padding
    # A chain is a path without its last node at most: there is no room for the rows of a longer one.
    longest = max(3, longest, *(case.chain + 1 for case in cases))
    state = DeviceState([case.config for case in cases], codebook, nodes=nodes, longest_path=longest)
    logits = np.full((len(cases), rows, codebook.vocabulary), np.nan, np.float32)
    for i, case in enumerate(cases):
        state.stand(i, known=[7, 1, 2, *[3] * case.chain, int(case.tree.tokens[0])], chain=case.chain)
        state.give_tree(i, case.tree)
        state.give_uniforms(i, case.uniforms)
        logits[i, case.chain : case.chain + case.tree.nodes] = case.logits
    if not threads:
        state.launch(ACCEPT, logits=logits, rows=rows)
        return state
    state.recorded, state.threads = [], threads
    state.launch(ACCEPT, logits=logits, rows=rows)
    ran = run_threaded(state.recorded)
    assert ran.races == 0, ran.report[:4000]
    return state


def check(state: DeviceState, i: int, case: Case, codebook: Codebook) -> None:
    """Compare what the kernel made of a request with what numpy makes of it."""
    stream = RecordedUniforms(case.uniforms)
    sampling = case.config.sampling
    rule, coupled = case.config.acceptance, case.config.draws_by_noise
    if coupled:
        noise, first = GumbelNoise.drawn(stream, codebook.vocabulary), 4 + case.chain
        at_depth = partial(row_at, noise, first)
        nodes, residual = walk_coupled(rule, case.tree, case.logits, sampling, codebook, at_depth)
    else:
        nodes, residual = walk(rule, case.tree, case.logits, sampling, codebook, stream)
    drawn = sampling.greedy or coupled
    root = int(residual.argmax()) if drawn else sample(residual, stream.next())
    tokens = [*case.tree.tokens[nodes[1:]].tolist(), root]
    known = 4 + case.chain + len(tokens)
    assert state.counter(i, Counter.FAULT) == Fault.NONE
    assert state.counter(i, Counter.TAKEN) == nodes.size - 1
    assert state["taken"][i, : nodes.size].tolist() == nodes.tolist()
    assert state.counter(i, Counter.CURSOR) == (0 if coupled else stream.used)
    assert state.counter(i, Counter.KNOWN) == known
    assert state["known"][i, known - len(tokens) : known].tolist() == tokens
    kept = [*range(case.chain), *(case.chain + nodes).tolist()]
    assert state.counter(i, Counter.KEPT) == len(kept)
    assert state["kept"][i, : len(kept)].tolist() == kept
    assert state.counter(i, Counter.CHAIN) == 0
    assert state.counter(i, Counter.TARGET_ROWS) == 3 + state.counter(i, Counter.EMITTED)
    assert state.counter(i, Counter.EMITTED) == known - 1
    assert state.counter(i, Counter.PENDING) == len(tokens)
    assert state.counter(i, Counter.PHASE) == Phase.VERIFIED
    if not drawn:
        np.testing.assert_allclose(state["probabilities"][i], residual, rtol=1e-11, atol=1e-15)


def row_at(noise: GumbelNoise, first: int, depth: int) -> np.ndarray:
    return noise.row(first + depth)


def recorded_case(case: dict[str, np.ndarray], logits: np.ndarray) -> Case:
    said = settings_of(case)
    config = GenerationConfig(
        Sampling(said["temperature"], said["top_k"], said["top_p"]),
        tree="tree",
        acceptance=rule_of(said["mode"], said["k"], said["delta"]),
    )
    tree = tree_from_paths(case["tree_tokens"], case["paths"].astype(np.int64))
    return Case(config, tree, logits, [*case["uniforms"].tolist(), 0.5])


def check_recorded(state: DeviceState, i: int, case: dict[str, np.ndarray], tree: DraftTree) -> None:
    """Compare with what the published implementation did."""
    length = state.counter(i, Counter.TAKEN) + 1
    nodes = state["taken"][i, :length].astype(np.int64)
    assert length - 1 == case["accept"]
    assert tree.first_path_through(nodes) == case["path"]
    if settings_of(case)["temperature"]:
        assert state.counter(i, Counter.CURSOR) == case["uniforms"].size + 1
        np.testing.assert_allclose(state["probabilities"][i], case["residual"], atol=1e-6)
    else:
        assert state.counter(i, Counter.CURSOR) == 0


def cases_of(arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    return [
        {key.removeprefix(f"{i}_"): arrays[key] for key in arrays if key.startswith(f"{i}_")}
        for i in range(RECORDED_CASES)
    ]


@pytest.mark.parametrize("threads", [0, 5])
def test_recorded_cases_in_one_batch(threads: int) -> None:
    recordings = cases_of(recorded.data("acceptance_cases"))
    codebook = recorded.codebook()
    cases = []
    for case in recordings:
        logits = np.full((len(case["tree_tokens"]), case["logits"].shape[1]), np.nan, np.float32)
        logits[case["visited"]] = case["logits"]
        cases.append(recorded_case(case, logits)._replace(chain=len(cases) % 4))
    state = accepted(cases, codebook, 3, threads)
    for i, (case, recording) in enumerate(zip(cases, recordings, strict=True)):
        check(state, i, case, codebook)
        check_recorded(state, i, recording, case.tree)


def test_recorded_cases_in_full() -> None:
    arrays, codes = recorded.golden("acceptance_cases"), recorded.golden("codebook")
    codebook = Codebook(codes["latents"], codes["nearest"])
    recordings = cases_of(arrays)
    cases = [recorded_case(case, case["node_logits"]) for case in recordings]
    state = accepted(cases, codebook)
    for i, (case, recording) in enumerate(zip(cases, recordings, strict=True)):
        check_recorded(state, i, recording, case.tree)


# --- Random cases --------------------------------------------------------------------------------

V = 23
CODEBOOK = Codebook.from_latents(np.random.default_rng(0).normal(size=(V, 3)), V - 1)

rules: st.SearchStrategy[AcceptanceRule] = st.one_of(
    st.just(Exact()),
    st.builds(Lantern, st.integers(1, V - 2), st.floats(0, 1)),
    st.builds(LanternPlusPlus, st.integers(1, V - 2), st.floats(1.01, 9)),
)
samplings = st.builds(
    Sampling,
    st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    st.integers(0, V + 2),
    st.sampled_from([1.0, 0.97, 0.61, 0.2, 1e-6]),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Logits with many ties, and some that rule a token out."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    depth = draw(st.integers(0, 3))
    shape = TreeShape(3, depth, draw(st.integers(1, 3 + 9 * depth)))
    tree = grow_tree(rng, shape, V, int(rng.integers(V))) if draw(st.booleans()) else root_only(4)
    grain = draw(st.sampled_from([0.0, 0.5, 1.0, 2.0]))
    logits = rng.normal(size=(tree.nodes, V)) * 2
    if grain:
        logits = np.round(logits / grain) * grain
    logits[rng.random(logits.shape) < draw(st.sampled_from([0.0, 0.3]))] = -np.inf
    logits[:, int(rng.integers(V))] = 1
    config = GenerationConfig(
        draw(samplings), tree="tree", acceptance=draw(rules), coupled=draw(st.booleans())
    )
    uniforms = UniformStream(draw(st.integers(0, 2**32)))
    numbers = [uniforms.next() for _ in range(tree.nodes + 1)]
    return Case(config, tree, logits.astype(np.float32), numbers, draw(st.integers(0, 3)))


# The same examples every time: sums in another order may break a tie with a bound otherwise (the next test).
@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(cases(), min_size=1, max_size=4), st.integers(0, 5))
def test_random_batches(batch: list[Case], padding: int) -> None:
    state = accepted(batch, CODEBOOK, padding)
    for i, case in enumerate(batch):
        check(state, i, case, CODEBOOK)


inviting_ties: st.SearchStrategy[AcceptanceRule] = st.one_of(
    st.builds(Lantern, st.integers(1, V - 2), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    st.builds(LanternPlusPlus, st.integers(1, V - 2), st.sampled_from([1.5, 2.0, 3.0, 7.0])),
)


def margin(case: Case) -> float:
    """The least distance of a sum from its bound, or of a(x) from the likeliest p, at any child's check."""
    rule, tree, margins = case.config.acceptance, case.tree, [1.0]
    assert isinstance(rule, Lantern | LanternPlusPlus)
    for child in range(1, tree.nodes):
        logits, token = case.logits[tree.parents[child]].astype(np.longdouble), int(tree.tokens[child])
        weights = np.exp(logits - logits.max())
        p = weights / weights.sum()
        bound = rule.delta if isinstance(rule, Lantern) else (rule.lam - 1) * p[token]
        sums = np.cumsum(p[CODEBOOK.nearest[token, : rule.k]])
        ahead = p[token] + np.append(0, sums) - p.max()
        margins += [float(abs(sums - bound).min()), float(abs(ahead).min())]
    return min(margins)


@settings(max_examples=200, deadline=None)
@given(st.lists(cases(), min_size=1, max_size=4), inviting_ties)
def test_greedy_decoding_is_judged_otherwise_only_where_a_sum_meets_its_bound(
    batch: list[Case], rule: AcceptanceRule
) -> None:
    """Such as when the k nearest hold all probability there is and the bound is 1.

    Then the sum is 1 in exact arithmetic and may be rounded to either side of it, as its order has it.
    """
    config = GenerationConfig(Sampling(0), tree="tree", acceptance=rule)
    greedy = [case._replace(config=config) for case in batch]
    state = accepted(greedy, CODEBOOK)
    for i, case in enumerate(greedy):
        try:
            check(state, i, case, CODEBOOK)
        except AssertionError:
            assert margin(case) < TIE


@pytest.mark.parametrize(
    ("logits", "sampling"),
    [
        ([2.0] * V, Sampling(top_p=0.5)),
        ([2.0] * V, Sampling(top_k=5)),
        ([2.0] * V, Sampling(top_k=5, top_p=0.1)),
        ([0.0, -0.0] * 11 + [-1.0], Sampling(top_p=0.4)),
        ([3.0, 3.0, *[1.0] * (V - 2)], Sampling(top_k=2)),
        ([3.0, *[1.0] * (V - 1)], Sampling(top_k=4, top_p=0.9)),
        ([3e38, -3e38, *[0.0] * (V - 2)], Sampling(0.01, top_p=0.99)),
        ([0.0, *[-np.inf] * (V - 1)], Sampling(top_k=7, top_p=0.99)),
    ],
)
def test_ties_on_the_edge(logits: list[float], sampling: Sampling) -> None:
    row = np.array([logits], np.float32)
    case = Case(GenerationConfig(sampling), root_only(0), row, [0.75])
    state = accepted([case], CODEBOOK)
    check(state, 0, case, CODEBOOK)
    expected = process(row[0], sampling)
    assert np.flatnonzero(state["probabilities"][0]).tolist() == np.flatnonzero(expected).tolist()


def test_a_token_of_no_probability_is_never_accepted() -> None:
    logits = np.zeros((2, V), np.float32)
    logits[:, 4] = -np.inf
    tree = DraftTree(*(np.array(a) for a in ([0, 4], [-1, 0], [0, 1])), np.tri(2, dtype=bool), np.zeros(2))
    case = Case(GenerationConfig(tree="tree"), tree, logits, [0.0, 0.5])
    state = accepted([case], CODEBOOK)
    check(state, 0, case, CODEBOOK)
    assert state.counter(0, Counter.TAKEN) == 0


def test_when_everything_is_rejected_the_next_root_may_be_any_token() -> None:
    # LANTERN with a first neighbour within the bound may remove all there is.
    logits = np.full((2, V), -np.inf, np.float32)
    near = CODEBOOK.nearest[0]
    logits[:, [int(near[0]), int(near[1])]] = 0
    tree = DraftTree(*(np.array(a) for a in ([3, 0], [-1, 0], [0, 1])), np.tri(2, dtype=bool), np.zeros(2))
    config = GenerationConfig(tree="tree", acceptance=Lantern(1, 0.5))
    case = Case(config, tree, logits, [0.9, 0.5])
    state = accepted([case], CODEBOOK)
    check(state, 0, case, CODEBOOK)
    np.testing.assert_allclose(state["probabilities"][0], 1 / V)


# --- Who is left alone, and faults ----------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_finite_maximum_are_a_fault(value: float, temperature: float) -> None:
    broken = np.zeros((1, V), np.float32)
    broken[0, 5] = value
    config = GenerationConfig(Sampling(temperature))
    sound = Case(config, root_only(1), np.zeros((1, V), np.float32), [0.5])
    state = accepted([sound._replace(logits=broken), sound], CODEBOOK)
    assert state.counter(0, Counter.FAULT) == Fault.LOGITS
    assert state.counter(0, Counter.KNOWN) == 4
    check(state, 1, sound, CODEBOOK)


def test_running_out_of_uniform_numbers_is_a_fault() -> None:
    state = DeviceState([GenerationConfig()], CODEBOOK, nodes=1, longest_path=1, image_tokens=8)
    state.stand(0, known=[1, 2])
    state.give_tree(0, root_only(2))
    state.set_counters(0, cursor=state.sizes.uniform_capacity)
    state.launch(ACCEPT, logits=np.zeros((1, 1, V), np.float32), rows=1)
    assert state.counter(0, Counter.FAULT) == Fault.UNIFORMS


@pytest.mark.parametrize("decision", [Decision.SKIP, Decision.IDLE])
def test_who_does_not_verify_is_left_alone(decision: Decision) -> None:
    state = DeviceState([GenerationConfig()], CODEBOOK, nodes=1, longest_path=1)
    state.stand(0, known=[1, 2])
    state.give_tree(0, root_only(2))
    state.set_counters(0, decision=decision)
    before = {name: array.copy() for name, array in state.arrays.items()}
    state.launch(ACCEPT, logits=np.zeros((1, 1, V), np.float32), rows=1)
    assert all((state[name] == array).all() for name, array in before.items())


def test_the_last_step_completes_the_image_and_keeps_nothing() -> None:
    state = DeviceState([GenerationConfig()], CODEBOOK, nodes=1, longest_path=1, image_tokens=3)
    state.stand(0, known=[1, 2])
    state.give_tree(0, root_only(2))
    state.launch(ACCEPT, logits=np.zeros((1, 1, V), np.float32), rows=1)
    assert state.counter(0, Counter.PHASE) == Phase.COMPLETE
    assert state.counter(0, Counter.KEPT) == 0
    assert state.counter(0, Counter.KNOWN) == 3
