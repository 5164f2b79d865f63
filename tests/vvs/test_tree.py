"""DraftTree: paths, children and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import grow_tree

from vvs.errors import BackendError
from vvs.tree import DraftTree, root_only
from vvs.tree_shape import TreeShape

TRACES = [
    "eagle",
    "lantern",
    "lantern_pp",
    "vvs_dynamic",
    "vvs_uniform2",
    "vvs_uniform3_topp",
    "vvs_uniform5",
]


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    k, depth = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    # What a k-ary tree of this depth can hold, and no more than is scored.
    total = draw(st.integers(1, min(k + depth * k * k, sum(k**d for d in range(1, depth + 2)))))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    return grow_tree(rng, TreeShape(k, depth, total), vocabulary=9, root=0)


def paths_by_hand(tree: DraftTree) -> list[list[int]]:
    leaves = set(range(tree.nodes)) - set(tree.parents.tolist())
    paths = []
    for leaf in leaves:
        path = [leaf]
        while tree.parents[path[-1]] >= 0:
            path.append(int(tree.parents[path[-1]]))
        paths.append(path[::-1])
    return sorted(paths, key=lambda path: [*path, tree.nodes])


@settings(max_examples=150, deadline=None)
@given(trees())
def test_paths_are_all_ways_to_a_leaf_in_order(tree: DraftTree) -> None:
    expected = paths_by_hand(tree)
    assert [path[path >= 0].tolist() for path in tree.paths] == expected
    assert tree.paths.shape == (len(expected), max(map(len, expected)))
    for i, path in enumerate(expected):
        first = tree.first_path_through(np.array(path))
        assert first == i
        assert expected[tree.first_path_through(np.array(path[:-1]))][: len(path) - 1] == path[:-1]


@settings(max_examples=50, deadline=None)
@given(trees())
def test_children_come_in_the_order_in_which_paths_meet_them(tree: DraftTree) -> None:
    for node, children in enumerate(tree.children):
        met = [int(path[i + 1]) for path in tree.paths for i in np.flatnonzero(path[:-1] == node)]
        assert list(children) == [child for child in dict.fromkeys(met) if child >= 0]


@pytest.mark.parametrize("trace", TRACES)
def test_recorded_paths(trace: str) -> None:
    check_recorded_paths(recorded.golden(f"trace_{trace}"))


def test_recorded_paths_of_the_trace_at_hand() -> None:
    check_recorded_paths(recorded.data("trace_vvs_uniform2"))


def check_recorded_paths(trace: dict[str, np.ndarray]) -> None:
    arrays = zip(trace["tree_tokens"], trace["tree_positions"], trace["tree_mask"], strict=True)
    for step, (tokens, depth, mask) in enumerate(arrays):
        paths = recorded.tree_from_mask(tokens, depth, mask).paths
        expected = trace["paths"][step][: trace["n_paths"][step]]
        assert (paths == expected[:, : paths.shape[1]]).all()
        assert (expected[:, paths.shape[1] :] == -1).all()


def test_a_root_alone_is_one_path() -> None:
    tree = root_only(7)
    assert tree.paths.tolist() == [[0]]
    assert tree.children == ((),)
    assert tree.tokens.tolist() == [7]


def test_trees_that_cannot_be_are_refused() -> None:
    tree = grow_tree(np.random.default_rng(0), TreeShape(2, 1, 3), 5, 0)
    with pytest.raises(BackendError, match="a draft tree of 4 nodes has arrays"):
        replace(tree, depth=tree.depth[:-1])
    with pytest.raises(BackendError, match="every parent before its children"):
        replace(tree, parents=np.array([-1, 0, 3, 0]))
    with pytest.raises(BackendError, match="start with its root"):
        replace(tree, parents=np.array([0, 0, 0, 0]))
