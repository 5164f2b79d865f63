"""Selection: which drafted path a skipped step takes unverified, and how far down it goes."""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

from vvs.checks import check_flag, check_real
from vvs.registry import Registry
from vvs.tree import DraftTree
from vvs.uniforms import Uniforms

LEAST_SCORE = -700.0
"""Scores are raised to this before they are exponentiated, so that no probability is 0."""


class Selection(NamedTuple):
    """A path and how much of it a skipped step takes."""

    path: int
    """Row of ``tree.paths``."""
    length: int
    """m: path nodes 0 .. m-1 are emitted, node m is the next root. 0 means the step cannot be skipped."""


class PathSelector(Protocol):
    """A frozen dataclass with one choice, registered in :data:`PATH_SELECTORS`."""

    def choose(self, tree: DraftTree, uniforms: Uniforms) -> Selection:
        """Choose a path of ``tree``."""
        ...


PATH_SELECTORS: Registry[PathSelector] = Registry("path selector")


@PATH_SELECTORS.register("random")
@dataclass(frozen=True)
class RandomPath:
    """One path uniformly at random (VVS). Consumes one uniform: path ``min(n - 1, floor(u n))``."""

    truncate: bool = True
    """Dynamic truncation; without it the whole path is taken, as in the paper's ablation."""

    def __post_init__(self) -> None:
        check_flag("random truncate", self.truncate)

    def choose(self, tree: DraftTree, uniforms: Uniforms) -> Selection:
        """Choose by one number of the stream."""
        n = len(tree.paths)
        path = min(n - 1, int(uniforms.next() * n))
        return Selection(path, taken_length(tree, path, truncate=self.truncate))


@PATH_SELECTORS.register("sampled")
@dataclass(frozen=True)
class SampledPath:
    """A path drawn as the drafter would draw it: at every node a child in proportion to its probability.

    Only drafted children can be drawn, so the drafter's distribution is cut off at them. Consumes one
    uniform, by inverse CDF over the paths in their order.
    """

    truncate: bool = True
    """Dynamic truncation; without it the whole path is taken."""
    temperature: float = 1.0
    """On top of the request's own: below 1, likely children are drawn more often than the drafter says."""

    def __post_init__(self) -> None:
        check_flag("sampled truncate", self.truncate)
        check_real("sampled temperature", self.temperature, above=0)

    def choose(self, tree: DraftTree, uniforms: Uniforms) -> Selection:
        """Choose by one number of the stream."""
        path = draw_path(path_weights(tree, self.temperature), uniforms.next())
        return Selection(path, taken_length(tree, path, truncate=self.truncate))


@PATH_SELECTORS.register("confident")
@dataclass(frozen=True)
class MostConfidentPath:
    """The path whose leaf the drafter scores highest, the first of equals. Consumes no uniform.

    Scores are cumulative log-probabilities, so short paths have an advantage.
    """

    truncate: bool = True
    """Dynamic truncation; without it the whole path is taken."""

    def __post_init__(self) -> None:
        check_flag("confident truncate", self.truncate)

    def choose(self, tree: DraftTree, uniforms: Uniforms) -> Selection:
        """Choose by the scores of the leaves."""
        path = int(tree.scores[list(tree.branching.leaves)].argmax())
        return Selection(path, taken_length(tree, path, truncate=self.truncate))


def path_weights(tree: DraftTree, temperature: float = 1.0) -> list[float]:
    """In proportion to what the paths are likely, when each step down goes to a child by its own probability.

    Scores are cumulative log-probabilities; those of siblings differ by what the drafter gives each. They are
    divided by the temperature, and then raised to -700 at least.

    In plain Python: for the few nodes of a tree that is faster than arrays.
    """
    scores = tree.scores.tolist()
    if min(scores) < LEAST_SCORE * temperature:
        scores = [max(score, LEAST_SCORE * temperature) for score in scores]
    shares = [math.exp(score / temperature) for score in scores]
    parents = tree.branching.parents
    of_siblings = [0.0] * len(shares)
    for node in range(1, len(shares)):
        of_siblings[parents[node]] += shares[node]
    weights = [1.0]  # of the ways down to every node
    for node in range(1, len(shares)):
        # First the share, which is at most 1: the product of two small numbers might vanish.
        weights.append(weights[parents[node]] * (shares[node] / of_siblings[parents[node]]))
    return [weights[leaf] for leaf in tree.branching.leaves]


def draw_path(weights: list[float], uniform: float) -> int:
    """Draw a path by inverse CDF: the first one whose cumulative weight exceeds ``uniform * sum``."""
    cumulative = list(accumulate(weights))
    path = bisect_right(cumulative, uniform * cumulative[-1])
    # Rounded up to the sum itself, it is the last path of any weight.
    return path if path < len(weights) else bisect_left(cumulative, cumulative[-1])


def taken_length(tree: DraftTree, path: int, *, truncate: bool) -> int:
    """How many tokens of a path a skipped step takes, m.

    With dynamic truncation (VVS) ``m = min(last index of the path, avg - 1)``, where avg is the number of
    tokens on all paths, root counted on each, divided by the number of paths, rounded down.
    """
    last = len(tree.branching.path(path)) - 1
    return min(last, tree.branching.mean_nodes - 1) if truncate else last
