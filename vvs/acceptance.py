"""Acceptance: which drafted tokens the target's distributions let pass.

A rule answers one question about one drafted token; :func:`walk` asks it down the tree. Rules are pure:
they see a distribution and a codebook, and random numbers are passed in. Sampling the next root from
what is left is the caller's business. Where target and drafter share their noise, :func:`walk_coupled` asks
whether a drafted token is, or stands for, the one that the target draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from vvs.arrays import Float32Array, Float64Array, IntArray
from vvs.checks import check_integer, check_real
from vvs.codebook import Codebook
from vvs.registry import Registry
from vvs.sampling import Sampling, couple, likeliest, process
from vvs.tree import DraftTree
from vvs.uniforms import Uniforms


class Judgement(NamedTuple):
    """What a rule says of one drafted token."""

    probability: float
    """a(x), with which the token is accepted; may exceed 1, which means always."""
    removes: IntArray | int
    """Tokens whose probability is taken away when it is rejected."""
    stands_for: IntArray | int
    """Tokens that it may stand for, itself included: those whose probabilities sum to a(x)."""


class AcceptanceRule(Protocol):
    """A frozen dataclass that judges drafted tokens, registered in :data:`ACCEPTANCE_RULES`."""

    @property
    def neighbours(self) -> int:
        """Nearest codes per token that the codebook must list."""
        ...

    def judge(self, p: Float64Array, token: int, codebook: Codebook) -> Judgement:
        """Judge ``token`` against the distribution ``p`` ``[V]`` it would be drawn from."""
        ...


ACCEPTANCE_RULES: Registry[AcceptanceRule] = Registry("acceptance rule")


@ACCEPTANCE_RULES.register("exact")
@dataclass(frozen=True)
class Exact:
    """Lossless: ``a(x) = p(x)``, and a rejection removes x.

    The drafter proposes deterministically (q = 1), so the output is distributed as plain AR sampling
    (speculative sampling, Leviathan et al. 2023, with several candidates per position as in SpecInfer).
    """

    @property
    def neighbours(self) -> int:
        """Nearest codes needed: none."""
        return 0

    def judge(self, p: Float64Array, token: int, codebook: Codebook) -> Judgement:
        """Judge by the token's own probability."""
        return Judgement(float(p[token]), token, token)


@ACCEPTANCE_RULES.register("lantern")
@dataclass(frozen=True)
class Lantern:
    """Relaxed by a fixed amount (LANTERN): near tokens in the codebook stand in for one another.

    ``a(x) = p(x) + sum of p over the longest prefix of x's k nearest codes whose sum stays <= delta``.
    """

    k: int = 64
    delta: float = 0.2

    def __post_init__(self) -> None:
        check_integer("lantern k", self.k, at_least=1)
        check_real("lantern delta", self.delta, at_least=0)

    @property
    def neighbours(self) -> int:
        """Nearest codes needed: a rejection removes k + 1."""
        return self.k + 1

    def judge(self, p: Float64Array, token: int, codebook: Codebook) -> Judgement:
        """Judge by the token's own and its neighbours' probability."""
        return _relaxed(p, token, codebook, self.k, self.delta)


@ACCEPTANCE_RULES.register("lantern++")
@dataclass(frozen=True)
class LanternPlusPlus:
    """Relaxed in proportion to the token's own probability (LANTERN++): the bound is ``(lam - 1) p(x)``."""

    k: int = 64
    lam: float = 3.0

    def __post_init__(self) -> None:
        check_integer("lantern++ k", self.k, at_least=1)
        check_real("lantern++ lam", self.lam, above=1)

    @property
    def neighbours(self) -> int:
        """Nearest codes needed: a rejection removes k + 1."""
        return self.k + 1

    def judge(self, p: Float64Array, token: int, codebook: Codebook) -> Judgement:
        """Judge by the token's own and its neighbours' probability."""
        return _relaxed(p, token, codebook, self.k, (self.lam - 1) * float(p[token]))


def _relaxed(p: Float64Array, token: int, codebook: Codebook, k: int, bound: float) -> Judgement:
    """``a(x) = p(x) + max {s_j : s_j <= bound}``, with ``s_j`` the summed p of x's j <= k nearest codes.

    A rejection removes x and, unless the very first neighbour was over the bound, its k + 1 nearest codes.
    """
    near = codebook.nearest[token, : k + 1]
    sums = np.cumsum(p[near[:k]])
    within = int(np.searchsorted(sums, bound, side="right"))
    if not within:
        return Judgement(float(p[token]), token, token)
    removes, stands_for = (np.append(codes, token).astype(np.int64) for codes in (near, near[:within]))
    return Judgement(float(p[token] + sums[within - 1]), removes, stands_for)


class Verdict(NamedTuple):
    """What verifying a tree came to."""

    nodes: IntArray
    """Root and accepted nodes, ``[accepted + 1]``, from the root on."""
    residual: Float64Array
    """Distribution ``[V]`` that the next root is drawn from; all on one token at temperature 0 and where
    noise is shared."""

    @property
    def accepted(self) -> int:
        """Drafted tokens accepted, the root not counted."""
        return self.nodes.size - 1


def walk(
    rule: AcceptanceRule,
    tree: DraftTree,
    logits: Float32Array,
    sampling: Sampling,
    codebook: Codebook,
    uniforms: Uniforms,
) -> Verdict:
    """Walk down from the root as long as a child is accepted.

    A node's logits are processed only when the walk reaches it. Consumes one uniform per child checked,
    none at temperature 0.

    Args:
        rule: judges each child.
        tree: N nodes.
        logits: ``[N, V]`` guided, one row per node.
        sampling: how logits become the distribution that children are judged against.
        codebook: of V tokens.
        uniforms: the request's stream.

    """
    if sampling.greedy:
        return _walk_greedily(rule, tree, logits, codebook)
    nodes = [0]
    while True:
        p = process(logits[nodes[-1]], sampling)
        for child in tree.children[nodes[-1]]:
            judgement = rule.judge(p, int(tree.tokens[child]), codebook)
            # A token of no probability fails even the one number that equals 0.
            if uniforms.next() <= judgement.probability and judgement.probability > 0:
                nodes.append(child)
                break
            p = _without(p, judgement.removes)
        else:
            return Verdict(np.array(nodes, np.int64), p)


def walk_coupled(
    rule: AcceptanceRule,
    tree: DraftTree,
    logits: Float32Array,
    sampling: Sampling,
    codebook: Codebook,
    noise: Callable[[int], Float32Array],
) -> Verdict:
    """Walk down from the root as long as a child is, or stands for, the token that the target draws.

    The target draws at every node as plain AR decoding would, from the logits and the noise of that place
    (:func:`vvs.sampling.couple`), so with the exact rule the tokens are those of plain AR decoding. A relaxed
    rule accepts a token as often as in :func:`walk`, and prefers the very token where it is drafted.

    Args:
        rule: says what a child may stand for.
        tree: N nodes.
        logits: ``[N, V]`` guided, one row per node.
        sampling: not greedy; at temperature 0 :func:`walk` needs no noise.
        codebook: of V tokens.
        noise: that of the token behind a node at some depth, ``[V]``.

    """
    nodes, tokens, children = [0], tree.tokens.tolist(), tree.children
    while True:
        node, row = nodes[-1], logits[nodes[-1]]
        drawn = couple(row, sampling, noise(len(nodes) - 1))
        child = next((child for child in children[node] if tokens[child] == drawn), None)
        if child is None and rule != Exact():
            child = _stand_in(rule, tree, node, row, drawn, sampling, codebook)
        if child is None:
            return Verdict(np.array(nodes, np.int64), _certain(drawn, row.size))
        nodes.append(child)


def _stand_in(
    rule: AcceptanceRule,
    tree: DraftTree,
    node: int,
    logits: Float32Array,
    drawn: int,
    sampling: Sampling,
    codebook: Codebook,
) -> int | None:
    """The first child of a node that may stand for the drawn token."""
    children = tree.children[node]
    if not children:
        return None
    p = process(logits, sampling)
    for child in children:
        if drawn in np.atleast_1d(rule.judge(p, int(tree.tokens[child]), codebook).stands_for):
            return child
    return None


def _certain(token: int, vocabulary: int) -> Float64Array:
    """The distribution that is all on one token."""
    certain = np.zeros(vocabulary)
    certain[token] = 1.0
    return certain


def _without(p: Float64Array, removed: IntArray | int) -> Float64Array:
    """Remove tokens in place and renormalise; uniform over all tokens if nothing is left."""
    p[removed] = 0
    total = p.sum()
    if total > 0:
        p /= total
    else:
        p.fill(1 / p.size)
    return p


def _walk_greedily(
    rule: AcceptanceRule, tree: DraftTree, logits: Float32Array, codebook: Codebook
) -> Verdict:
    """Take the longest path of which every token wins at its node; the first of equals in path order.

    A token x wins when it is the argmax after a(x) has replaced p(x) in the softmax of the raw logits. For
    the exact rule that is the argmax itself. A relaxed rule may let several siblings win, so the walk
    branches.
    """
    longest: list[int] = []
    frontier = [[0]]
    while frontier:
        nodes = frontier.pop(0)
        if len(nodes) > len(longest):
            longest = nodes
        frontier += [[*nodes, child] for child in _winners(rule, tree, nodes[-1], logits, codebook)]
    return Verdict(np.array(longest, np.int64), process(logits[longest[-1]], Sampling(temperature=0)))


def _winners(
    rule: AcceptanceRule, tree: DraftTree, node: int, logits: Float32Array, codebook: Codebook
) -> list[int]:
    if not tree.children[node]:
        return []
    p = process(logits[node], Sampling())
    top = likeliest(logits[node])

    def wins(token: int) -> bool:
        relaxed = rule.judge(p, token, codebook).probability
        return token == top or relaxed > p[top] or (relaxed == p[top] and token < top)

    return [child for child in tree.children[node] if wins(int(tree.tokens[child]))]
