"""DraftTree: one request's tree of drafted tokens, and the paths through it.

Knows nothing of how a tree is grown (the drafter's graph does that) or judged (:mod:`vvs.acceptance`).
"""

from dataclasses import dataclass, field

import numpy as np

from vvs.arrays import BoolArray, Float32Array, IntArray
from vvs.branching import NO_NODE, Branching, branching_of
from vvs.engine import DraftResult
from vvs.errors import BackendError


@dataclass(slots=True, eq=False)
class DraftTree:
    """A root and its drafted nodes. Node 0 is the root and every parent comes before its children.

    Not to be changed; not frozen, since one is made in every step, and a frozen one takes longer to make.

    Raises:
        BackendError: the arrays do not have one length, or a node comes before its parent.

    """

    tokens: IntArray  # [N]
    parents: IntArray  # [N], parents[0] = -1
    depth: IntArray  # [N], depth[0] = 0
    ancestors: BoolArray  # [N, N], self included
    scores: Float32Array  # [N] cumulative log-probability under the drafter, 0 at the root
    branching: Branching = field(init=False)
    """What follows from the parents."""

    def __post_init__(self) -> None:
        N = self.tokens.shape[0]
        of_nodes = self.parents.shape == self.depth.shape == self.scores.shape == self.tokens.shape == (N,)
        if N < 1 or not of_nodes or self.ancestors.shape != (N, N):
            shapes = [array.shape for array in (self.tokens, self.parents, self.depth, self.scores)]
            raise BackendError(
                f"a draft tree of {N} nodes has arrays {shapes} and ancestors {self.ancestors.shape}, "
                f"but needs [{N}] and [{N}, {N}]"
            )
        self.branching = branching_of(self.parents)

    @property
    def nodes(self) -> int:
        """N, nodes with the root."""
        return int(self.tokens.shape[0])

    @property
    def paths(self) -> IntArray:
        """All paths from the root to a leaf, as :attr:`vvs.branching.Branching.paths`."""
        return self.branching.paths

    @property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every node by rising index, which is the order in which the paths meet them."""
        return self.branching.children

    def first_path_through(self, nodes: IntArray) -> int:
        """Index of the first path that starts with ``nodes`` (from the root on)."""
        return int((self.paths[:, : nodes.size] == nodes).all(axis=1).argmax())


def root_only(root: int) -> DraftTree:
    """Return the tree of plain AR decoding: the root and nothing drafted."""
    return DraftTree(
        tokens=np.array([root], np.int64),
        parents=np.array([NO_NODE], np.int64),
        depth=np.zeros(1, np.int64),
        ancestors=np.ones((1, 1), np.bool_),
        scores=np.zeros(1, np.float32),
    )


def tree_of(result: DraftResult, request: int) -> DraftTree:
    """Pick one request's tree out of a drafting call."""
    return DraftTree(
        tokens=result.tokens[request],
        parents=result.parents[request],
        depth=result.depth[request],
        ancestors=result.ancestors[request],
        scores=result.scores[request],
    )
