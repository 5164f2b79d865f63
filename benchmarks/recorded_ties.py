"""RecordedTies: an engine whose drafted trees are completed from a recording where they are undefined.

When a nucleus holds fewer tokens than a node may have children, the tree is filled up with nodes of
probability zero. They are tied, so which ones is an accident of the top-k at hand: PyTorch's own on the
CPU happens to repeat the recording, no other runtime does. Such a tree is replaced by the recorded one,
provided that every node of it that is *not* tied agrees; how often is counted.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import Float32Array, IntArray
from vvs.benchmarks.recording import Trace
from vvs.engine import Conditioning, DraftResult, DraftRows, Engine, Session, TargetResult, TargetRows
from vvs.geometry import Geometry
from vvs.tree_shape import TreeShape


class RecordedTies:
    """An engine for replaying one trace."""

    def __init__(self, engine: Engine, trace: Trace) -> None:
        self._engine = engine
        self.trace = trace
        self.completed = 0
        """Trees taken from the recording so far."""

    @property
    def geometry(self) -> Geometry:
        """Sizes of the models."""
        return self._engine.geometry

    @property
    def trees(self) -> Mapping[str, TreeShape]:
        """Draft trees of the engine."""
        return self._engine.trees

    def open(self, requests: int) -> Session:
        """Open a session for the one request of the trace."""
        return _Session(self._engine.open(requests), self)

    def decode_image(self, tokens: IntArray) -> Float32Array:
        """Decode as the engine does."""
        return self._engine.decode_image(tokens)

    def complete(self, drafted: DraftResult, step: int) -> DraftResult:
        """Return ``drafted``, or the recorded tree of ``step`` where tied nodes make the difference."""
        recorded = self.trace.tree(step)
        if recorded is None or not np.isneginf(drafted.scores).any() or _same(drafted, recorded):
            return drafted
        scores = drafted.scores[0]
        # A nucleus of one token gives a child its parent's score, so the worst finite score may be tied too.
        certain = np.flatnonzero(scores > scores[np.isfinite(scores)].min())
        branches = {_branch(recorded, node) for node in range(recorded.tokens.shape[1])}
        if not all(_branch(drafted, int(node)) in branches for node in certain):
            return drafted
        self.completed += 1
        return recorded


class _Session:
    """The engine's session, with drafts completed."""

    def __init__(self, session: Session, ties: RecordedTies) -> None:
        self._session = session
        self._ties = ties
        self._step = 0

    @property
    def engine_seconds(self) -> float:
        return self._session.engine_seconds

    def prefill(self, conditioning: Conditioning, cfg_scale: Float32Array) -> TargetResult:
        return self._session.prefill(conditioning, cfg_scale)

    def verify(self, rows: IntArray, inputs: TargetRows) -> TargetResult:
        return self._session.verify(rows, inputs)

    def commit(self, rows: IntArray, kept: Sequence[IntArray], past_length: IntArray) -> None:
        self._session.commit(rows, kept, past_length)

    def draft(self, rows: IntArray, inputs: DraftRows, tree: str) -> DraftResult:
        drafted = self._session.draft(rows, inputs, tree)
        self._step += 1
        return self._ties.complete(drafted, self._step - 1)

    def close(self) -> None:
        self._session.close()


def _same(a: DraftResult, b: DraftResult) -> bool:
    return np.array_equal(a.tokens, b.tokens) and np.array_equal(a.ancestors, b.ancestors)


def _branch(tree: DraftResult, node: int) -> tuple[int, ...]:
    """Tokens from the root to a node."""
    lineage: NDArray[np.int64] = tree.tokens[0, tree.ancestors[0, node]]
    return tuple(lineage.tolist())
