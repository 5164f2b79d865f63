"""Progress: how far one request is, as a few integers under one invariant.

Pure counting: which tokens and features they count is the business of :mod:`vvs.request`.
"""

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """What the last step of a request was, which is what the next one builds on."""

    PREFILLED = "prefilled"
    VERIFIED = "verified"
    SKIPPED = "skipped"
    COMPLETE = "complete"
    """All image tokens are known; no step follows."""


@dataclass(slots=True)
class Progress:
    """Rows and tokens of one request between two steps. Moved on in place, several times a step.

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
        self._check()

    def _check(self) -> None:
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

    def drafted(self) -> None:
        """The drafter has consumed everything up to the root."""
        self.drafter_rows = self.prompt + self.emitted

    def verified(self, accepted: int) -> None:
        """The chain, the root and ``accepted`` nodes are in the target's cache."""
        self.emitted += accepted + 1
        self.target_rows += self.chain + accepted + 1
        self.chain = 0
        self._stepped(Phase.VERIFIED)

    def skipped(self, length: int) -> None:
        """``length`` tokens (m) have joined the chain unverified."""
        self.emitted += length
        self.chain += length
        self._stepped(Phase.SKIPPED)

    def completed(self) -> None:
        """No step follows."""
        self.phase = Phase.COMPLETE

    def _stepped(self, phase: Phase) -> None:
        self.steps += 1
        self.phase = phase
        self._check()
