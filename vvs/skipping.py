"""Skipping: whether a step runs the target or takes a drafted path unverified.

A policy is one stateless decision over a view of the step. Which path is then taken is the business of
:mod:`vvs.selection`.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from vvs.branching import NO_NODE
from vvs.checks import check_integer, check_real
from vvs.codebook import Codebook
from vvs.registry import Registry
from vvs.tree import DraftTree

EMITTED_BEFORE_FIRST_SKIP = 5
"""No step is skipped until more tokens than this are emitted: there must be features to reuse."""

DEPTH_DECAY = 0.9
"""Weight of a depth in the path similarity, relative to the depth above it."""

SIMILARITY_STRIDE = 2
"""The path similarity looks at every second path."""


class StepView(NamedTuple):
    """What a policy may look at before a step is verified or skipped."""

    step: int
    """Steps taken before this one, verified and skipped."""
    emitted: int
    """Image tokens emitted so far, the root not counted."""
    last_skipped: bool
    """Whether the step before this one was skipped."""
    tree: DraftTree
    """What was just drafted."""
    codebook: Codebook


class SkipPolicy(Protocol):
    """A frozen dataclass with one decision, registered in :data:`SKIP_POLICIES`."""

    def wants(self, view: StepView) -> bool:
        """Whether this policy would skip the step."""
        ...


@runtime_checkable
class PlannedPolicy(SkipPolicy, Protocol):
    """A policy that decides by the step's number alone, so that it is known before anything is drafted."""

    def plans(self, step: int) -> bool:
        """Whether step number ``step`` is to be skipped."""
        ...


SKIP_POLICIES: Registry[SkipPolicy] = Registry("skip policy")


def decide(policy: SkipPolicy, view: StepView) -> bool:
    """Whether the step is skipped: the policy's wish, once enough tokens are emitted for any policy."""
    return may_skip(view.emitted) and policy.wants(view)


def may_skip(emitted: int) -> bool:
    """Whether enough tokens are emitted for any policy to skip a step."""
    return emitted > EMITTED_BEFORE_FIRST_SKIP


@SKIP_POLICIES.register("never")
@dataclass(frozen=True)
class Never:
    """Verify every step."""

    def wants(self, view: StepView) -> bool:
        """Never skip."""
        return False


@SKIP_POLICIES.register("uniform")
@dataclass(frozen=True)
class Uniform:
    """Skip step i if and only if ``i mod interval == 1`` (VVS, uniform skipping)."""

    interval: int

    def __post_init__(self) -> None:
        check_integer("uniform interval", self.interval, at_least=2)

    def wants(self, view: StepView) -> bool:
        """Skip by the step's number alone."""
        return self.plans(view.step)

    def plans(self, step: int) -> bool:
        """Skip every ``interval``-th step, the second one first."""
        return step % self.interval == 1


@SKIP_POLICIES.register("share")
@dataclass(frozen=True)
class Share:
    """Skip a share of the steps, spread as evenly as can be: step i if and only if ``floor(i s)`` is new.

    With 0.5 every second step is skipped, with 0.6 three of five, with 2/3 two steps after each verified one.
    """

    share: float

    def __post_init__(self) -> None:
        check_real("share of skipped steps", self.share, at_least=0, below=1)

    def wants(self, view: StepView) -> bool:
        """Skip by the step's number alone."""
        return self.plans(view.step)

    def plans(self, step: int) -> bool:
        """Skip when the count of steps to skip grows by one at this step."""
        return math.floor(step * self.share) > math.floor(max(0, step - 1) * self.share)


@SKIP_POLICIES.register("dynamic")
@dataclass(frozen=True)
class Dynamic:
    """Skip when the drafted paths are alike (VVS, dynamic skipping); never twice in a row."""

    threshold: float = 0.7

    def __post_init__(self) -> None:
        check_real("dynamic threshold", self.threshold, at_least=-1, at_most=1)

    def wants(self, view: StepView) -> bool:
        """Skip when :func:`path_similarity` reaches the threshold."""
        return not view.last_skipped and path_similarity(view.tree, view.codebook) >= self.threshold


def skips_in_a_row(policy: SkipPolicy, steps: int) -> int:
    """Most of so many steps that a policy skips one after the other, at least 1."""
    return _longest_run(policy, steps) if isinstance(policy, Share) else 1


@cache
def _longest_run(policy: Share, steps: int) -> int:
    runs = groupby(policy.plans(step) for step in range(steps))
    return max((len(list(run)) for skips, run in runs if skips), default=1)


def path_similarity(tree: DraftTree, codebook: Codebook) -> float:
    """Mean similarity of all pairs among every second path of a tree (VVS).

    A pair's similarity is the cosine of its codebook vectors depth by depth below the root, averaged with
    weights ``0.9^depth`` normalised over the longest path; a depth that one of the pair lacks counts 0 and
    keeps its weight. 0 if there are fewer than two paths to compare.
    """
    paths = tree.paths[::SIMILARITY_STRIDE, 1:]
    if len(paths) < 2 or not paths.shape[1]:
        return 0.0
    vectors = codebook.directions[tree.tokens[paths]]  # [paths, depths, C]
    vectors[paths == NO_NODE] = 0
    # The dot products of all pairs i < j sum to (|sum of vectors|^2 - sum of |vector|^2) / 2.
    pairs = (np.square(vectors.sum(axis=0)).sum(axis=-1) - np.square(vectors).sum(axis=(0, 2))) / 2
    weights = DEPTH_DECAY ** np.arange(paths.shape[1])
    return float(weights @ pairs / weights.sum() / (len(paths) * (len(paths) - 1) / 2))
