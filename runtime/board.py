"""Board: the image tokens of one request as they become known, rebuilt from the loop's events."""

import numpy as np

from vvs.arrays import IntArray
from vvs.step import StepNews


class Board:
    """Known tokens of one request. They are only added to: emitted tokens stand, and so does the root."""

    def __init__(self, image_tokens: int) -> None:
        self._image_tokens = image_tokens
        self._known: list[int] = []

    def add(self, step: StepNews) -> None:
        """Take what one step added: accepted or skipped tokens and, if it verified, the next root."""
        if not self._known:
            self._known.append(step.root)
        self._known += step.added.tolist()

    def __len__(self) -> int:
        return min(len(self._known), self._image_tokens)

    def tokens(self, known: int) -> IntArray:
        """Return the first ``known`` tokens."""
        return np.array(self._known[:known], np.int64)

    def filled(self, known: int, fill: int) -> IntArray:
        """Return a complete grid ``[grid * grid]``: the first ``known`` tokens, then ``fill``."""
        grid = np.full(self._image_tokens, fill, np.int64)
        grid[:known] = self._known[:known]
        return grid
