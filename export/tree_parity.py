"""Comparing drafted trees where rounding decides between near ties: by the nodes they share.

A node is the tokens on the way to it. Two trees that are drafted in half precision by different kernels share
most nodes, in another order; on those their scores must agree. Whatever was drafted, a tree must be one:
ancestors and depth follow from the parents.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
STRUCTURE = ("parents", "depth", "ancestors")


class Shared(NamedTuple):
    """What two trees of one request have in common."""

    lost: int
    """Drafted nodes of the expected tree that the other lacks."""
    drafted: int
    """Drafted nodes of the expected tree."""
    expected: NDArray[np.float64]  # [K] scores of the K nodes in both
    actual: NDArray[np.float64]  # [K]


def shared_nodes(expected: Arrays, actual: Arrays, request: int) -> Shared:
    """Compare one request's trees; arrays are those of a draft-tree graph, ``[R, N]`` or ``[R, N, N]``."""
    wanted, found = (_scores_by_path(tree, request) for tree in (expected, actual))
    both = [path for path in wanted if path in found]
    scores = [np.array([tree[path] for path in both]) for tree in (wanted, found)]
    return Shared(len(wanted) - len(both), len(wanted), *scores)


def _scores_by_path(tree: Arrays, request: int) -> dict[tuple[int, ...], float]:
    tokens, ancestors, scores = (tree[name][request] for name in ("tree_tokens", "ancestors", "scores"))
    return {tuple(tokens[ancestors[n]].tolist()): float(scores[n]) for n in range(1, len(tokens))}


def structure_of(parents: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """What follows from parents ``[R, N]``: themselves if they come first, depth, ancestors ``[R, N, N]``.

    A parent that does not come before its node reads as -2, which no graph gives.
    """
    requests, nodes = parents.shape
    ancestors = np.tile(np.eye(nodes, dtype=np.bool_), (requests, 1, 1))
    ordered = np.where(parents < np.arange(nodes), parents, -2)
    rows = np.arange(requests)
    for node in range(1, nodes):
        ancestors[:, node] |= ancestors[rows, np.clip(ordered[:, node], 0, None)]
    return {"parents": ordered, "depth": ancestors.sum(-1) - 1, "ancestors": ancestors}
