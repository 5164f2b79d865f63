"""Skip policies and path selectors, by hand and against the recorded steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import settings_of, tree_from_mask, tree_from_paths
from test_tree import TRACES, trees

from vvs.codebook import Codebook
from vvs.errors import SettingsError
from vvs.selection import MostConfidentPath, RandomPath, SampledPath, draw_path, path_weights
from vvs.skipping import Dynamic, Never, Share, StepView, Uniform, decide, path_similarity
from vvs.tree import DraftTree, root_only
from vvs.uniforms import RecordedUniforms, UniformStream

CODEBOOK = Codebook.from_latents(np.random.default_rng(0).normal(size=(9, 3)), 8)


def tree_of_candidates(candidates: np.ndarray) -> DraftTree:
    """The tree whose paths carry these tokens, paths in the given order; -1 is no token."""
    nodes: dict[tuple[int, ...], int] = {}
    paths = np.full(candidates.shape, -1, np.int64)
    for i, row in enumerate(candidates):
        for depth in range(int((row >= 0).sum())):
            paths[i, depth] = nodes.setdefault(tuple(row[: depth + 1]), len(nodes))
    return tree_from_paths(np.array([prefix[-1] for prefix in nodes]), paths)


def test_recorded_selections_and_similarities() -> None:
    cases, codebook = recorded.data("skip_cases"), recorded.codebook()
    for i in range(int(cases["count"])):
        tree = tree_of_candidates(cases[f"{i}_candidates"])
        uniforms = RecordedUniforms(cases[f"{i}_uniforms"])
        selection = RandomPath().choose(tree, uniforms)
        assert selection == (cases[f"{i}_path"], cases[f"{i}_accept"])
        assert uniforms.remaining == 0
        assert path_similarity(tree, codebook) == pytest.approx(float(cases[f"{i}_similarity"]), abs=1e-6)


@pytest.mark.parametrize("trace", TRACES)
def test_recorded_decisions(trace: str) -> None:
    """Every recorded step is skipped exactly when its policy says so, and by as many tokens."""
    arrays, codebook = recorded.golden(f"trace_{trace}"), recorded.codebook()
    policy = recorded.config_of(settings_of(arrays)).skipping
    emitted, last_skipped = 0, False
    for step, skipped in enumerate(arrays["kind"].tolist()):
        tree = tree_from_mask(*(arrays[f"tree_{name}"][step] for name in ("tokens", "positions", "mask")))
        assert decide(policy, StepView(step, emitted, last_skipped, tree, codebook)) == skipped
        path, accept = int(arrays["path"][step]), int(arrays["accept"][step])
        if skipped:
            middle = (path + 0.5) / len(tree.paths)
            assert RandomPath().choose(tree, RecordedUniforms([middle])) == (path, accept)
        emitted += accept + (not skipped)
        last_skipped = skipped


def similarity_by_hand(tree: DraftTree, codebook: Codebook) -> float:
    paths = [path[path >= 0][1:] for path in tree.paths[::2]]
    longest = tree.paths.shape[1] - 1
    weights = np.array([0.9**depth for depth in range(longest)])
    weights /= weights.sum()
    pairs = []
    for i in range(len(paths)):
        for j in range(i):
            both = zip(paths[i], paths[j], weights, strict=False)
            total = 0.0
            for a, b, weight in both:
                x, y = codebook.latents[tree.tokens[a]], codebook.latents[tree.tokens[b]]
                total += weight * float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
            pairs.append(total)
    return float(np.mean(pairs)) if pairs else 0.0


@settings(max_examples=100, deadline=None)
@given(trees())
def test_similarity_is_the_mean_over_pairs_of_paths(tree: DraftTree) -> None:
    assert path_similarity(tree, CODEBOOK) == pytest.approx(similarity_by_hand(tree, CODEBOOK), abs=1e-12)


def view(**changes: object) -> StepView:
    settings: dict[str, object] = {"step": 1, "emitted": 6, "last_skipped": False, "tree": root_only(0)}
    return StepView(**{**settings, "codebook": CODEBOOK, **changes})  # type: ignore[arg-type]


def test_nothing_is_skipped_while_five_or_fewer_tokens_are_emitted() -> None:
    assert not decide(Uniform(2), view(emitted=5))
    assert decide(Uniform(2), view(emitted=6))


def test_uniform_skips_one_step_in_so_many() -> None:
    assert [step for step in range(12) if decide(Uniform(5), view(step=step))] == [1, 6, 11]
    assert [step for step in range(6) if decide(Uniform(2), view(step=step))] == [1, 3, 5]
    assert not any(decide(Never(), view(step=step)) for step in range(12))


@pytest.mark.parametrize(
    ("share", "pattern"), [(0, "vvvvvv"), (0.5, "vvsvsvsv"), (0.6, "vvsvssvsvss"), (0.75, "vvsssvsss")]
)
def test_a_share_of_the_steps_is_skipped_evenly(share: float, pattern: str) -> None:
    assert "".join("vs"[Share(share).plans(step)] for step in range(len(pattern))) == pattern
    assert not decide(Share(0.9), view(step=9, emitted=5))
    assert decide(Share(0.9), view(step=9, last_skipped=True))


@given(st.floats(0, 0.99), st.integers(1, 300))
def test_a_share_never_falls_behind(share: float, steps: int) -> None:
    skipped = sum(Share(share).plans(step) for step in range(steps + 1))
    assert skipped == int(steps * share)
    assert not Share(share).plans(0)


def test_dynamic_never_skips_twice_in_a_row() -> None:
    alike = tree_from_paths(np.array([0, 1, 1, 1]), np.array([[0, 1], [0, 2], [0, 3]]))
    assert path_similarity(alike, CODEBOOK) == pytest.approx(1)
    assert decide(Dynamic(0.99), view(tree=alike))
    assert not decide(Dynamic(0.99), view(tree=alike, last_skipped=True))
    assert not decide(Dynamic(0.5), view(tree=root_only(0)))


@settings(max_examples=100, deadline=None)
@given(trees(), st.integers(0, 99))
def test_selected_lengths_stay_on_the_path(tree: DraftTree, seed: int) -> None:
    lengths = (tree.paths >= 0).sum(axis=1)
    average = int(lengths.sum()) // len(lengths)
    uniforms = UniformStream(seed)
    selectors = ((RandomPath(), 1), (RandomPath(False), 2), (MostConfidentPath(), 2), (SampledPath(), 3))
    for selector, used in selectors:
        path, length = selector.choose(tree, uniforms)
        last = lengths[path] - 1
        assert length == (min(last, average - 1) if selector.truncate else last)
        assert 1 <= length <= last
        assert uniforms.used == used


def test_the_most_confident_path_ends_in_the_best_leaf() -> None:
    tree = tree_from_paths(np.array([0, 1, 2, 3, 4]), np.array([[0, 1, 3], [0, 2, 4]]))
    tree.scores[:] = [0, -1, -2, -4, -3]
    assert MostConfidentPath().choose(tree, RecordedUniforms([])) == (1, 2)
    tree.scores[3] = -3
    assert MostConfidentPath().choose(tree, RecordedUniforms([])).path == 0


@settings(max_examples=60, deadline=None)
@given(trees())
def test_a_path_is_as_likely_as_its_steps_down(tree: DraftTree) -> None:
    """In proportion to the product, from the root on, of each node's share among its siblings."""
    given_by_drafter = np.exp(tree.scores.astype(np.float64))
    expected = [
        np.prod(
            [given_by_drafter[b] / given_by_drafter[list(tree.children[a])].sum() for a, b in pairwise(path)]
        )
        for path in (row[row >= 0] for row in tree.paths)
    ]
    assert sum(expected) == pytest.approx(1)
    weights = path_weights(tree)
    np.testing.assert_allclose(np.array(weights) / sum(weights), expected, rtol=1e-9)


def test_sampled_paths_follow_the_drafters_probabilities() -> None:
    tree = tree_from_paths(np.array([0, 1, 2, 3]), np.array([[0, 1, 3], [0, 2, -1]]))
    tree.scores[:] = np.log([1, 0.2, 0.6, 0.1])
    np.testing.assert_allclose(path_weights(tree), [0.25, 0.75], rtol=1e-6)
    assert SampledPath(truncate=False).choose(tree, RecordedUniforms([0.24])) == (0, 2)
    assert SampledPath().choose(tree, RecordedUniforms([0.26])) == (1, 1)
    np.testing.assert_allclose(path_weights(tree, 0.5), [0.1, 0.9], rtol=1e-6)
    assert SampledPath(temperature=0.5).choose(tree, RecordedUniforms([0.11])).path == 1
    tree.scores[1:] = -np.inf
    assert sum(path_weights(tree)) == pytest.approx(1)


def test_a_path_of_next_to_no_weight_keeps_it() -> None:
    """Small numbers multiplied before they are divided would vanish, and the kernel does not do that."""
    tree = tree_from_paths(np.array([0, 1, 2, 3, 4]), np.array([[0, 1, 3], [0, 1, 4], [0, 2, -1]]))
    tree.scores[1:] = [-np.inf, -2.9, -2.9, -3.1]
    weights = path_weights(tree, 0.01)
    assert min(weights) > 0
    assert weights[0] / weights[1] == pytest.approx(np.exp(20), rel=1e-4)


def test_a_number_rounded_up_to_the_sum_draws_the_last_path_of_any_weight() -> None:
    least = 5e-324  # three quarters of it are rounded up to it
    assert draw_path([0.0, least, 0.0], 0.75) == 1
    assert draw_path([0.0, least, 0.0], 0.25) == 1
    assert draw_path([0.25, 0.75], 0.25) == 1
    assert draw_path([0.25, 0.75], 0.24) == 0


def test_a_root_alone_gives_nothing_to_take() -> None:
    assert RandomPath().choose(root_only(0), RecordedUniforms([0.9])) == (0, 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Uniform(1), "uniform interval is 1, but it must be an integer >= 2"),
        (lambda: Dynamic(1.5), "dynamic threshold is 1.5, but it must be a finite number >= -1 and <= 1"),
        (lambda: RandomPath(1), "random truncate is 1, but it must be true or false"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SettingsError, match=message):
        wrong()
