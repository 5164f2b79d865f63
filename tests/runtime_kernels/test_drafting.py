"""The propose kernels: the tree, its paths, and trees that are none."""

from __future__ import annotations

import numpy as np
import pytest
from device_state import DeviceState
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import grow_tree

from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.runtime.kernels.state import Counter, Fault, Phase
from vvs.runtime.kernels.table import PROPOSE, PROPOSE_ROOT
from vvs.tree import DraftTree
from vvs.tree_shape import TreeShape

V = 23
CODEBOOK = Codebook.from_latents(np.random.default_rng(0).normal(size=(V, 3)), 2)
NAMES = ("tokens", "parents", "depth", "ancestors", "scores")
TREES = ("one", "another")


def drafted(trees: list[DraftTree]) -> dict[str, np.ndarray]:
    """What an engine returns, for a request each."""
    return {f"drafted_{name}": np.stack([getattr(tree, name) for tree in trees]) for name in NAMES}


def propose(state: DeviceState, trees: list[DraftTree], number: int = 0) -> None:
    outputs = {
        name: array.astype(np.float32 if name == "drafted_scores" else array.dtype)
        for name, array in drafted(trees).items()
    }
    state.launch(PROPOSE, **outputs, tree=number, drafted_nodes=trees[0].nodes)


def state_of(configs: list[GenerationConfig], nodes: int, longest: int) -> DeviceState:
    state = DeviceState(configs, CODEBOOK, nodes=nodes, longest_path=longest, trees=TREES)
    for i in range(len(configs)):
        state.stand(i, known=[1, 5])
    return state


def check(state: DeviceState, i: int, tree: DraftTree) -> None:
    N, (count, longest) = tree.nodes, tree.paths.shape
    assert state.counter(i, Counter.FAULT) == Fault.NONE
    columns = Counter.NODES, Counter.PATHS, Counter.LONGEST
    assert [state.counter(i, column) for column in columns] == [N, count, longest]
    for name in NAMES:
        of_state = state[f"tree_{name}"][i, :N]
        assert (of_state[:, :N] if name == "ancestors" else of_state).tolist() == getattr(tree, name).tolist()
    assert state["paths"][i, :count, :longest].tolist() == tree.paths.tolist()
    assert (state["paths"][i, :count, longest:] == -1).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_trees_in_larger_arrays(data: st.DataObject) -> None:
    depth = data.draw(st.integers(0, 4))
    shape = TreeShape(3, depth, data.draw(st.integers(1, min(40, 3 + 9 * depth))))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    trees = [grow_tree(rng, shape, V, int(rng.integers(V))) for _ in range(3)]
    state = state_of([GenerationConfig(tree="one")] * 3, shape.nodes + data.draw(st.integers(0, 9)), 7)
    propose(state, trees)
    for i, tree in enumerate(trees):
        check(state, i, tree)


def test_each_request_gets_the_tree_it_asked_for() -> None:
    rng = np.random.default_rng(1)
    one = [grow_tree(rng, TreeShape(2, 1, 4), V, 0) for _ in range(5)]
    another = [grow_tree(rng, TreeShape(3, 2, 12), V, 0) for _ in range(5)]
    names = ["one", "another", None, "one", "another"]
    state = state_of([GenerationConfig(tree=name) for name in names], 13, 4)
    state.set_counters(3, phase=Phase.COMPLETE)
    state.set_counters(4, fault=Fault.LOGITS)
    propose(state, one, 0)
    propose(state, another, 1)
    state.launch(PROPOSE_ROOT)
    check(state, 0, one[0])
    check(state, 1, another[1])
    assert state.counter(2, Counter.NODES) == 1
    assert state["tree_tokens"][2, 0] == 5
    assert state["paths"][2, 0].tolist() == [0, -1, -1, -1]
    assert [state.counter(i, Counter.NODES) for i in (3, 4)] == [0, 0]


@pytest.mark.parametrize(
    ("name", "node", "value"),
    [
        ("parents", 0, 0),
        ("parents", 2, 2),
        ("parents", 2, -1),
        ("parents", 1, 1 << 40),
        ("depth", 1, 2),
        ("depth", 0, 1),
        ("tokens", 3, V),
        ("tokens", 0, -1),
    ],
)
def test_what_is_no_tree_is_a_fault(name: str, node: int, value: int) -> None:
    rng = np.random.default_rng(1)
    trees = [grow_tree(rng, TreeShape(2, 1, 4), V, 0) for _ in range(2)]
    getattr(trees[0], name)[node] = value
    state = state_of([GenerationConfig(tree="one")] * 2, 5, 3)
    propose(state, trees)
    assert state.counter(0, Counter.FAULT) == Fault.TREE
    check(state, 1, trees[1])


def test_a_tree_deeper_than_the_state_is_a_fault() -> None:
    parents = np.arange(-1, 3)
    tree = DraftTree(np.arange(4), parents, np.arange(4), np.tri(4, dtype=bool), np.zeros(4, np.float32))
    state = state_of([GenerationConfig(tree="one")], 4, 3)
    propose(state, [tree])
    assert state.counter(0, Counter.FAULT) == Fault.TREE
