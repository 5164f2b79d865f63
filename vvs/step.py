"""What one step of one request came to, for the loop, for progress displays and for replaying.

A loop that decides on a device tells less of a step than one on the host does: :class:`StepNews`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from vvs.arrays import FeatureArray, IntArray
from vvs.statistics import StepKind, StepTimes
from vvs.tree import DraftTree


class StepNews(Protocol):
    """One step of one request, as every loop tells it."""

    @property
    def request(self) -> int:
        """Index of the request in its batch."""
        ...

    @property
    def kind(self) -> StepKind:
        """Whether the step ran the target."""
        ...

    @property
    def accept(self) -> int:
        """Accepted length: accepted drafted tokens of a verified step, m of a skipped one."""
        ...

    @property
    def root(self) -> int:
        """The token the step started from, known before it."""
        ...

    @property
    def added(self) -> IntArray:
        """Tokens that the step made known ``[n]``, the next root last."""
        ...


class BatchNews(Protocol):
    """One step of a batch, or its prefill, as every loop tells it."""

    @property
    def known(self) -> tuple[int, ...]:
        """Image tokens known so far per request, the root counted, at most all of the image's."""
        ...

    @property
    def records(self) -> Sequence[StepNews]:
        """One per request that took part; none for the prefill."""
        ...


class Verified(NamedTuple):
    """Outcome of running the target on a request's tree."""

    nodes: IntArray  # [accepted + 1] root and accepted nodes, from the root on
    root: int
    """The token sampled after them."""
    rows: IntArray  # [chain + accepted + 1] of the target call's T rows, those of the features
    features: FeatureArray  # [g, chain + accepted + 1, D] of the chain, the root and the accepted nodes


class Skipped(NamedTuple):
    """Outcome of taking a drafted path unverified."""

    nodes: IntArray  # [m + 1] from the root on; the last one is the next root
    path: int
    """Row of ``tree.paths`` that was chosen."""


Outcome = Verified | Skipped


class StepRecord(NamedTuple):
    """One step of one request. Enough to compare two runs decision by decision."""

    request: int
    step: int
    """Number of the step within its request, from 0; verified and skipped steps count alike."""
    tree: DraftTree
    outcome: Outcome
    uniforms_used: int
    """Numbers of the request's stream consumed up to the end of this step."""

    @property
    def kind(self) -> StepKind:
        """Whether the step ran the target."""
        return StepKind.SKIP if isinstance(self.outcome, Skipped) else StepKind.VERIFY

    @property
    def accept(self) -> int:
        """Accepted length: accepted drafted tokens of a verified step, m of a skipped one."""
        return self.outcome.nodes.size - 1

    @property
    def root(self) -> int:
        """The token the step started from."""
        return int(self.tree.tokens[0])

    @property
    def added(self) -> IntArray:
        """Tokens that the step made known ``[n]``, the next root last."""
        taken = self.tree.tokens[self.outcome.nodes[1:]]
        return np.append(taken, self.outcome.root) if isinstance(self.outcome, Verified) else taken

    @property
    def path(self) -> int:
        """Row of ``tree.paths``: the chosen one, or the first that starts with the accepted nodes."""
        if isinstance(self.outcome, Skipped):
            return self.outcome.path
        return self.tree.first_path_through(self.outcome.nodes)


class StepEvent(NamedTuple):
    """One step of a batch, or its prefill."""

    known: tuple[int, ...]
    """Image tokens known so far per request, the root counted, at most all of the image's."""
    records: tuple[StepRecord, ...]
    """One per request that took part; none for the prefill."""
    times: StepTimes
