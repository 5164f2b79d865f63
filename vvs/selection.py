"""Selection: which drafted path a skipped step takes unverified, and how far down it goes."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from vvs.checks import check_flag
from vvs.registry import Registry
from vvs.tree import NO_NODE, DraftTree
from vvs.uniforms import Uniforms


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
        leaves = tree.paths.max(axis=1)  # parents come before children, so the leaf has the largest index
        path = int(tree.scores[leaves].argmax())
        return Selection(path, taken_length(tree, path, truncate=self.truncate))


def taken_length(tree: DraftTree, path: int, *, truncate: bool) -> int:
    """How many tokens of a path a skipped step takes, m.

    With dynamic truncation (VVS) ``m = min(last index of the path, avg - 1)``, where avg is the number of
    tokens on all paths, root counted on each, divided by the number of paths, rounded down.
    """
    present = tree.paths != NO_NODE
    last = int(np.count_nonzero(present[path])) - 1
    return min(last, int(np.count_nonzero(present)) // len(present) - 1) if truncate else last
