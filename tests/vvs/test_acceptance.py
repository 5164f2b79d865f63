"""Acceptance rules: against the recorded cases, and lossless as a matter of distribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import recorded
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from recorded import rule_of, settings_of, tree_from_paths
from scipy import stats
from toy_engine import ToyEngine, grow_tree, toy_logits

from vvs.acceptance import AcceptanceRule, Exact, Judgement, Lantern, LanternPlusPlus, walk, walk_coupled
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.decoding import Decoder
from vvs.errors import SettingsError
from vvs.noise import GumbelNoise
from vvs.sampling import Sampling, couple, process, sample
from vvs.tree import DraftTree, root_only
from vvs.tree_shape import TreeShape
from vvs.uniforms import RecordedUniforms, UniformStream

CASES = 36


def check_case(case: dict[str, np.ndarray], logits: np.ndarray, codebook: Codebook) -> None:
    settings = settings_of(case)
    tree = tree_from_paths(case["tree_tokens"], case["paths"].astype(np.int64))
    sampling = Sampling(settings["temperature"], settings["top_k"], settings["top_p"])
    uniforms = RecordedUniforms(case["uniforms"])
    rule = rule_of(settings["mode"], settings["k"], settings["delta"])
    verdict = walk(rule, tree, logits, sampling, codebook, uniforms)
    assert uniforms.remaining == 0
    assert verdict.accepted == case["accept"]
    assert tree.first_path_through(verdict.nodes) == case["path"]
    if sampling.greedy:
        # At temperature 0 the recorded residual is the node's logits, of which the argmax is taken.
        residual = case["residual"]
        assert verdict.residual[residual if residual.ndim == 0 else residual.argmax()] == 1
        assert verdict.residual.sum() == 1
    else:
        np.testing.assert_allclose(verdict.residual, case["residual"], atol=1e-6)


@pytest.mark.parametrize("i", range(CASES))
def test_recorded_cases(i: int) -> None:
    arrays = recorded.data("acceptance_cases")
    case = {name.removeprefix(f"{i}_"): array for name, array in arrays.items() if name.startswith(f"{i}_")}
    # Only the rows that the walk looks at are kept; any other would not be finite.
    logits = np.full((len(case["tree_tokens"]), case["logits"].shape[1]), np.nan, np.float32)
    logits[case["visited"]] = case["logits"]
    check_case(case, logits, recorded.codebook())


def test_recorded_cases_in_full() -> None:
    arrays, codes = recorded.golden("acceptance_cases"), recorded.golden("codebook")
    codebook = Codebook(codes["latents"], codes["nearest"])
    for i in range(CASES):
        case = {key.removeprefix(f"{i}_"): arrays[key] for key in arrays if key.startswith(f"{i}_")}
        check_case(case, case["node_logits"], codebook)


# --- Lossless, by distribution -------------------------------------------------------------------

LEVEL = 1e-3
"""Chance that a test of a right rule fails; the seeds are fixed, so it either does or it does not."""

DISTORTION = 0.05
"""Total variation distance that the tests must catch."""

POWER = 0.99
"""Chance with which they must catch it."""


@dataclass(frozen=True)
class Distorted(Exact):
    """Not lossless: accepts drafted tokens a little too readily."""

    factor: float = 1.25

    def judge(self, p: np.ndarray, token: int, codebook: Codebook) -> Judgement:
        return Judgement(self.factor * float(p[token]), token, token)


def assert_powerful(expected: np.ndarray, samples: int) -> None:
    """Fail unless a chi-square test of this size catches any distortion of the size stated.

    A distribution at total variation distance d is at least ``4 d^2`` away in chi-square, whatever the
    direction (Cauchy-Schwarz), so the statistic is noncentral with at least ``4 d^2 n``.
    """
    freedom = expected.size - 1
    critical = stats.chi2.isf(LEVEL, freedom)
    assert stats.ncx2.sf(critical, freedom, 4 * DISTORTION**2 * samples) > POWER


def p_value(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(stats.chisquare(counts, expected * counts.sum()).pvalue)


def little_codebook(vocabulary: int) -> Codebook:
    latents = np.random.default_rng(0).normal(size=(vocabulary, 3))
    return Codebook.from_latents(latents, vocabulary - 1)


def two_tokens(
    rule: AcceptanceRule, tree: DraftTree, logits: np.ndarray, sampling: Sampling, samples: int
) -> np.ndarray:
    """Counts ``[V, V]`` of the two tokens after the root, each sampled with fresh numbers.

    Where a step brings only one token, plain AR sampling supplies the second, as the next step would.
    """
    V = logits.shape[1]
    counts = np.zeros((V, V), np.int64)
    uniforms = UniformStream(1)
    codebook = little_codebook(V)
    rows = logits_of_tree(logits, tree)
    processed = [process(row, sampling) for row in logits]
    for _ in range(samples):
        nodes, residual = walk(rule, tree, rows, sampling, codebook, uniforms)
        tokens = [*tree.tokens[nodes[1:]].tolist(), sample(residual, uniforms.next())]
        if len(tokens) == 1:
            tokens.append(sample(processed[1 + tokens[0]], uniforms.next()))
        counts[tokens[0], tokens[1]] += 1
    return counts


def logits_of_tree(logits: np.ndarray, tree: DraftTree) -> np.ndarray:
    """Row 0 of ``logits`` at the root, row 1 + x after the first token x; deeper nodes reuse it."""
    return np.stack(
        [logits[0 if depth == 0 else 1 + token] for token, depth in zip(tree.tokens, tree.depth, strict=True)]
    )


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=3), Sampling(1.3, top_p=0.9)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_exact_rule_is_distributed_as_plain_sampling(sampling: Sampling, seed: int) -> None:
    rng = np.random.default_rng(seed)
    V, samples = 4, 7000
    logits = rng.normal(size=(V + 1, V)).astype(np.float32)
    tree = grow_tree(rng, TreeShape(3, 1, 9), V, root=0)
    counts = two_tokens(Exact(), tree, logits, sampling, samples).ravel()
    joint = np.stack(
        [process(logits[0], sampling)[x] * process(logits[1 + x], sampling) for x in range(V)]
    ).ravel()
    possible = joint > 0
    assert counts[~possible].sum() == 0
    assert_powerful(joint[possible], samples)
    assert p_value(counts[possible], joint[possible]) > LEVEL


def test_a_distorted_rule_is_caught() -> None:
    rng = np.random.default_rng(0)
    V, samples = 4, 7000
    logits = rng.normal(size=(V + 1, V)).astype(np.float32)
    tree = grow_tree(rng, TreeShape(3, 1, 9), V, root=0)
    counts = two_tokens(Distorted(), tree, logits, Sampling(), samples).ravel()
    joint = np.stack(
        [process(logits[0], Sampling())[x] * process(logits[1 + x], Sampling()) for x in range(V)]
    )
    distance = np.abs(counts / samples - joint.ravel()).sum() / 2
    assert distance > DISTORTION
    assert p_value(counts, joint.ravel()) < LEVEL


@pytest.mark.parametrize(("rule", "lossless"), [(Exact(), True), (Distorted(factor=1.6), False)])
def test_whole_images_are_distributed_as_plain_sampling(
    rule: AcceptanceRule, lossless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the whole loop: 2 x 2 images of 2 tokens, all 16 outcomes against their exact probabilities."""
    monkeypatch.setattr("vvs.config.ACCEPTANCE_RULES._types", {"exact": Exact, "distorted": Distorted})
    shape, samples, batch = TreeShape(2, 1, 4), 7000, 100
    decoder = Decoder(ToyEngine(2, 2, [shape]), little_codebook(2))
    config = GenerationConfig(cfg_scale=1.0, tree=shape.name, acceptance=rule)
    counts = np.zeros(16, np.int64)
    for start in range(0, samples, batch):
        streams = [UniformStream(start + i) for i in range(batch)]
        images, _ = decoder.generate({"prompt": np.zeros(batch, np.int64)}, [config] * batch, streams)
        counts += np.bincount(images @ [8, 4, 2, 1], minlength=16)
    expected = np.ones(16)
    for image in range(16):
        tokens = tuple(image >> shift & 1 for shift in (3, 2, 1, 0))
        for i, token in enumerate(tokens):
            expected[image] *= process(toy_logits(2, 0, tokens[:i], 1.0), Sampling())[token]
    assert_powerful(expected, samples)
    assert (p_value(counts, expected) > LEVEL) == lossless


# --- Shared noise ----------------------------------------------------------------------------------


def drawn_plainly(logits: np.ndarray, sampling: Sampling, noise: GumbelNoise) -> list[int]:
    """The two tokens after the root that plain decoding draws, ``logits`` as of :func:`logits_of_tree`."""
    first = couple(logits[0], sampling, noise.row(0))
    return [first, couple(logits[1 + first], sampling, noise.row(1))]


@given_settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([Sampling(), Sampling(0.8, top_k=3), Sampling(1.3, top_p=0.9)]),
    st.integers(1, 12),
)
def test_by_noise_the_exact_rule_draws_the_very_tokens_of_plain_decoding(
    seed: int, sampling: Sampling, total: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(6, 5)).astype(np.float32)
    tree = grow_tree(rng, TreeShape(3, 1, total), 5, root=0)
    noise = GumbelNoise(seed, 5)
    rows = logits_of_tree(logits, tree)
    nodes, residual = walk_coupled(Exact(), tree, rows, sampling, little_codebook(5), noise.row)
    tokens = [*tree.tokens[nodes[1:]].tolist(), int(residual.argmax())]
    assert residual.sum() == 1
    assert tokens[:2] == drawn_plainly(logits, sampling, noise)[: len(tokens)]


@pytest.mark.parametrize("rule", [Lantern(3, 0.4), LanternPlusPlus(3, 2.5)])
def test_by_noise_a_relaxed_rule_accepts_as_often_as_it_says(rule: AcceptanceRule) -> None:
    rng, V, samples = np.random.default_rng(3), 8, 8000
    logits = rng.normal(size=(1, V)).astype(np.float32)
    codebook, token = little_codebook(V), 5
    tree = grow_tree(rng, TreeShape(1, 0, 1), V, root=0)
    tree.tokens[1] = token
    noise = GumbelNoise(1, V)
    rows = np.repeat(logits, 2, axis=0)
    accepted = sum(
        walk_coupled(rule, tree, rows, Sampling(), codebook, partial(at_depth, noise, i)).accepted
        for i in range(samples)
    )
    a = rule.judge(process(logits[0], Sampling()), token, codebook).probability
    assert process(logits[0], Sampling())[token] < a < 1
    assert stats.binomtest(accepted, samples, a).pvalue > LEVEL
    assert stats.binomtest(accepted, samples, a - 0.05).pvalue < LEVEL


def at_depth(noise: GumbelNoise, place: int, depth: int) -> np.ndarray:
    return noise.row(2 * place + depth)


def test_by_noise_the_drawn_token_is_preferred_to_one_that_stands_for_it(line: Codebook) -> None:
    tree = tree_from_paths(np.array([0, 1, 2]), np.array([[0, 1], [0, 2]]))
    logits = np.tile(np.array([0, 1, 5, 1, 0], np.float32), (3, 1))
    nodes, _ = walk_coupled(
        Lantern(4, 1), tree, logits, Sampling(), line, lambda depth: np.zeros(5, np.float32)
    )
    assert tree.tokens[nodes].tolist() == [0, 2]
    only = tree_from_paths(np.array([0, 1]), np.array([[0, 1]]))
    nodes, _ = walk_coupled(
        Lantern(4, 1), only, logits, Sampling(), line, lambda depth: np.zeros(5, np.float32)
    )
    assert only.tokens[nodes].tolist() == [0, 1]


# --- Rules by hand -------------------------------------------------------------------------------


@pytest.fixture
def line() -> Codebook:
    """Five codes on a line, so that neighbours are easy to see."""
    return Codebook.from_latents(np.array([[0.0], [1.0], [2.1], [3.3], [4.6]]), 4)


P = np.array([0.1, 0.3, 0.25, 0.2, 0.15])


def test_the_relaxed_sum_stops_at_the_bound(line: Codebook) -> None:
    # Nearest to 1: 0, 2, 3, 4.
    assert Lantern(3, 0.05).judge(P, 1, line) == (0.3, 1, 1)
    assert Lantern(3, 0.1).judge(P, 1, line).probability == pytest.approx(0.4)
    assert Lantern(3, 0.36).judge(P, 1, line).probability == pytest.approx(0.65)
    assert Lantern(1, 0.36).judge(P, 1, line).probability == pytest.approx(0.4)
    assert LanternPlusPlus(3, 1.5).judge(P, 1, line).probability == pytest.approx(0.4)
    assert LanternPlusPlus(3, 3).judge(P, 1, line).probability == pytest.approx(0.85)


def test_a_relaxed_rejection_removes_one_neighbour_more_than_it_sums(line: Codebook) -> None:
    assert sorted(np.atleast_1d(Lantern(2, 0.4).judge(P, 1, line).removes)) == [0, 1, 2, 3]
    assert np.atleast_1d(Exact().judge(P, 1, line).removes).tolist() == [1]


def test_a_token_stands_for_the_tokens_that_are_summed(line: Codebook) -> None:
    assert sorted(np.atleast_1d(Lantern(3, 0.36).judge(P, 1, line).stands_for)) == [0, 1, 2]
    assert np.atleast_1d(Exact().judge(P, 1, line).stands_for).tolist() == [1]


def chain_of(tokens: list[int], parents: list[int]) -> DraftTree:
    N = len(tokens)
    ancestors, depth = np.eye(N, dtype=bool), np.zeros(N, np.int64)
    for node in range(1, N):
        ancestors[node] |= ancestors[parents[node]]
        depth[node] = depth[parents[node]] + 1
    return DraftTree(np.array(tokens), np.array(parents), depth, ancestors, np.zeros(N, np.float32))


def test_a_token_of_no_probability_is_never_accepted(line: Codebook) -> None:
    tree = chain_of([0, 4], [-1, 0])
    logits = np.array([[0, 0, 0, 0, -np.inf]] * 2, np.float32)
    verdict = walk(Exact(), tree, logits, Sampling(), line, RecordedUniforms([0.0]))
    assert verdict.accepted == 0


def test_when_nothing_is_left_the_next_root_may_be_any_token(line: Codebook) -> None:
    tree = chain_of([0, 2], [-1, 0])
    logits = np.array([[-np.inf, -np.inf, 0, -np.inf, -np.inf]] * 2, np.float32)
    uniforms = RecordedUniforms([0.5])
    assert walk(Exact(), tree, logits, Sampling(), line, uniforms).accepted == 1

    @dataclass(frozen=True)
    class Refuse(Exact):
        def judge(self, p: np.ndarray, token: int, codebook: Codebook) -> Judgement:
            return Judgement(0.0, token, token)

    verdict = walk(Refuse(), tree, logits, Sampling(), line, RecordedUniforms([0.5]))
    assert verdict.residual.tolist() == [0.2] * 5


def test_relaxed_greedy_takes_the_longest_of_several_winning_paths(line: Codebook) -> None:
    # Both children of the root win once relaxed; only the second has a winning child of its own.
    tree = chain_of([0, 1, 2, 3], [-1, 0, 0, 2])
    logits = np.log(
        np.array([[0.1, 0.3, 0.3, 0.2, 0.1]] * 2 + [[0.05, 0.05, 0.05, 0.8, 0.05]] * 2, np.float32)
    )
    verdict = walk(Lantern(4, 0.9), tree, logits, Sampling(temperature=0), line, RecordedUniforms([]))
    assert verdict.nodes.tolist() == [0, 2, 3]
    strict = walk(Exact(), tree, logits, Sampling(temperature=0), line, RecordedUniforms([]))
    assert strict.nodes.tolist() == [0, 1]


def test_a_root_alone_leaves_its_own_distribution(line: Codebook) -> None:
    logits = np.log(P)[None].astype(np.float32)
    verdict = walk(Exact(), root_only(3), logits, Sampling(), line, RecordedUniforms([]))
    assert verdict.nodes.tolist() == [0]
    np.testing.assert_allclose(verdict.residual, P, rtol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [lambda: Lantern(0, 0.1), lambda: Lantern(5, -0.1), lambda: LanternPlusPlus(5, 1), lambda: Lantern(2.5)],
)
def test_settings_out_of_range_are_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SettingsError, match="must be"):
        wrong()
