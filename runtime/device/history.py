"""History: the steps of a batch that one graph decoded, as the device kept them, told one after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vvs.runtime.device.news import DeviceNews, DeviceStep
from vvs.runtime.kernels.state import StepColumn


@dataclass(frozen=True, eq=False)
class History:
    """What a decoded batch read back."""

    steps: NDArray[np.int32]
    """Steps of each request ``[R]``."""
    columns: NDArray[np.int32]
    """Of each step what :class:`StepColumn` says ``[R, image_tokens, 3]``; anything behind the last one."""
    known: NDArray[Any]
    """Tokens ``[R, known_capacity]``."""

    def news(self, known_before: NDArray[np.int32]) -> Iterator[DeviceNews]:
        """Every step, its time unknown; ``known_before [R]`` counts the tokens known before the first one."""
        image_tokens = self.columns.shape[1]
        known = known_before.copy()
        for step in range(int(self.steps.max())):
            taking = np.flatnonzero(self.steps > step).tolist()
            before = known.copy()
            known[taking] = self.columns[taking, step, StepColumn.STEP_KNOWN]
            records = tuple(self._record(request, step, before, known) for request in taking)
            yield DeviceNews(tuple(np.minimum(known, image_tokens).tolist()), records, None)

    def _record(
        self, request: int, step: int, before: NDArray[np.int32], after: NDArray[np.int32]
    ) -> DeviceStep:
        columns = self.columns[request, step]
        decision, taken = (int(columns[name]) for name in (StepColumn.STEP_DECISION, StepColumn.STEP_TAKEN))
        was, now = int(before[request]), int(after[request])
        return DeviceStep.of(request, decision, taken, self.known[request], was, now)
