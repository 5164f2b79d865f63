"""Branching: how the nodes of a draft tree hang together, whatever their tokens are.

Trees of one shape often branch alike, flat ones always, so what follows from the parents is kept.
"""

from functools import cached_property, lru_cache

import numpy as np

from vvs.arrays import IntArray
from vvs.errors import BackendError

NO_NODE = -1
KEPT = 64
"""Branchings that are kept: those met last."""


class Branching:
    """What follows from the parents of N nodes. Shared between trees: its arrays cannot be written to.

    Args:
        parents: of every node; that of the root, node 0, is -1, and every other comes before its child.

    Raises:
        BackendError: there is no root, or a node comes before its parent.

    """

    def __init__(self, parents: tuple[int, ...]) -> None:
        later = enumerate(parents[1:], start=1)
        if parents[:1] != (NO_NODE,) or not all(0 <= parent < node for node, parent in later):
            raise BackendError(
                "a draft tree must start with its root and list every parent before its children"
            )
        self.parents = parents
        """Of every node; that of the root is -1."""

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every node by rising index, which is the order in which the paths meet them."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def paths(self) -> IntArray:
        """All paths from the root to a leaf, ``[paths, longest]`` node indices, -1 where a path has ended.

        Ordered by comparing node indices from the root on, "no node" sorting last.
        """
        paths = np.full((len(self._by_leaf), max(map(len, self._by_leaf))), NO_NODE, np.int64)
        for row, path in zip(paths, self._by_leaf, strict=True):
            row[: len(path)] = path
        return _fixed(paths)

    def path(self, index: int) -> tuple[int, ...]:
        """Nodes of one path, from the root on; those of a row of :attr:`paths`."""
        return self._by_leaf[index]

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Last node of every path."""
        return tuple(path[-1] for path in self._by_leaf)

    @cached_property
    def mean_nodes(self) -> int:
        """Nodes on all paths, root counted on each, divided by the number of paths, rounded down."""
        return sum(map(len, self._by_leaf)) // len(self._by_leaf)

    @cached_property
    def _by_leaf(self) -> list[tuple[int, ...]]:
        """The paths; no path begins with another one, so that none of them ends where two are compared."""
        to: list[tuple[int, ...]] = [(0,)]
        for node, parent in enumerate(self.parents[1:], start=1):
            to.append((*to[parent], node))
        inner = set(self.parents)
        return sorted([path for node, path in enumerate(to) if node not in inner])


def branching_of(parents: IntArray) -> Branching:
    """Return the branching of nodes with these parents ``[N]``; raises BackendError as :class:`Branching`."""
    return _branching(parents.tobytes(), parents.dtype)


@lru_cache(KEPT)
def _branching(parents: bytes, dtype: np.dtype[np.int64]) -> Branching:
    return Branching(tuple(np.frombuffer(parents, dtype).tolist()))


def _fixed(array: IntArray) -> IntArray:
    array.flags.writeable = False
    return array
