"""DeviceNews: what a step of a batch came to, as the device-resident loop tells it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import IntArray
from vvs.runtime.kernels.state import Decision
from vvs.statistics import StepKind, StepTimes

KINDS = {Decision.VERIFY: StepKind.VERIFY, Decision.SKIP: StepKind.SKIP}


@dataclass(frozen=True, eq=False)
class DeviceStep:
    """What one step of one request came to; answers :class:`vvs.step.StepNews`."""

    request: int
    kind: StepKind
    accept: int
    root: int
    added: IntArray  # [n]

    @classmethod
    def of(
        cls, request: int, decision: int, accept: int, known: NDArray[Any], was: int, now: int
    ) -> "DeviceStep":
        """Read off a step before which ``was`` of the tokens ``known`` were known, and after it ``now``."""
        added = known[was:now].astype(np.int64)
        return cls(request, KINDS[Decision(decision)], accept, int(known[was - 1]), added)


@dataclass(frozen=True, eq=False)
class DeviceNews:
    """One step of a batch, or its prefill; answers :class:`vvs.step.BatchNews`."""

    known: tuple[int, ...]
    records: tuple[DeviceStep, ...]
    times: StepTimes | None
    """None for a step that was part of a whole image's graph: nobody saw when it began or ended."""
