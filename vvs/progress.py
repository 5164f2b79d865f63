"""Progress: how far one request is, as a few integers under one invariant.

Pure counting: which tokens and features they count is the business of :mod:`vvs.request`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Phase(Enum):
    """What the last step of a request was, which is what the next one builds on."""

    PREFILLED = "prefilled"
    VERIFIED = "verified"
    SKIPPED = "skipped"
    COMPLETE = "complete"
    """All image tokens are known; no step follows."""


@dataclass(frozen=True)
class Progress:
    """Rows and tokens of one request between two steps.

    The invariant: every prompt row and every emitted token either has its row in the target's KV cache or
    is in the chain, ``target_rows + chain == prompt + emitted``. The root is not emitted yet and has no row
    anywhere. The drafter is never ahead: ``drafter_rows <= prompt + emitted``, with equality after drafting.
    """

    prompt: int
    """P, prompt rows."""
    emitted: int
    """Image tokens that stand, the root not counted."""
    chain: int
    """Of those, the newest, which skipped steps took and the target has not seen."""
    target_rows: int
    """Rows in the target's KV cache."""
    drafter_rows: int
    """Rows in the drafter's KV cache. Row i embeds the token at position i + 1."""
    steps: int = 0
    """Steps taken, verified and skipped."""
    phase: Phase = Phase.PREFILLED

    def __post_init__(self) -> None:
        if not (
            self.target_rows + self.chain == self.prompt + self.emitted
            and 0 <= self.chain <= self.emitted
            and 0 <= self.drafter_rows <= self.prompt + self.emitted
        ):
            raise RuntimeError(f"the decoding loop has lost count of its rows: {self}")

    @classmethod
    def after_prefill(cls, prompt: int) -> "Progress":
        """Return the state in which the prompt is in the target's cache and the first root is sampled."""
        return cls(prompt=prompt, emitted=0, chain=0, target_rows=prompt, drafter_rows=0)

    @property
    def root_position(self) -> int:
        """Position of the root when it is fed."""
        return self.prompt + self.emitted

    def drafted(self) -> "Progress":
        """Return the state after the drafter has consumed everything up to the root."""
        return self._with(drafter_rows=self.prompt + self.emitted)

    def verified(self, accepted: int) -> "Progress":
        """Return the state once the chain, the root and ``accepted`` nodes are in the target's cache."""
        return self._with(
            emitted=self.emitted + accepted + 1,
            chain=0,
            target_rows=self.target_rows + self.chain + accepted + 1,
            steps=self.steps + 1,
            phase=Phase.VERIFIED,
        )

    def skipped(self, length: int) -> "Progress":
        """Return the state after ``length`` tokens (m) have joined the chain unverified."""
        return self._with(
            emitted=self.emitted + length,
            chain=self.chain + length,
            steps=self.steps + 1,
            phase=Phase.SKIPPED,
        )

    def completed(self) -> "Progress":
        """Return the state in which no step follows."""
        return self._with(phase=Phase.COMPLETE)

    def _with(self, **changes: Any) -> "Progress":
        # Twice a step: dataclasses.replace takes several times as long.
        return Progress(**(self.__dict__ | changes))
