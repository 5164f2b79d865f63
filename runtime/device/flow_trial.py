"""``python -m vvs.runtime.device.flow_trial``: runs a small flow on the GPU; exit 1 if that fails.

The flow has every kind of part that a whole image's has: a loop, a branch, a choice, captured copies and
fills, and kernels that set conditions within them.
"""

import sys

import numpy as np

from vvs.errors import BackendError, VvsError
from vvs.runtime.device.arena import Arena, ArenaPlan
from vvs.runtime.device.calls import Call, Condition, Copy, Fill, Launch
from vvs.runtime.device.cuda_backend import open_gpu
from vvs.runtime.device.flow import Embed, Flow, Graph, If, Switch, While
from vvs.runtime.device.interface import Device, Stream
from vvs.runtime.kernels.state import Counter, Decision, Phase, StepColumn
from vvs.runtime.kernels.table import END_STEP, ROUTE_STEP

STEPS = 4
MARK = 7


class _Trial:
    """One request that verifies once, skips once, and is then complete."""

    def __init__(self, device: Device, stream: Stream, arena: Arena) -> None:
        self._device = device
        self._stream = stream
        self._arena = arena

    def run(self) -> bool:
        """Whether the right bodies ran, each once."""
        self._upload("skipping", Phase.VERIFIED, Decision.SKIP)
        self._upload("complete", Phase.COMPLETE, Decision.IDLE)
        verify = self._captured(
            Fill(self._arena["verified"], MARK), Copy(self._arena["counters"], self._arena["skipping"])
        )
        chain = self._captured(Fill(self._arena["chained"], MARK))
        skip = self._captured(Copy(self._arena["counters"], self._arena["complete"]))
        graph = self._device.assemble(self._flow(verify, chain, skip))
        for _ in range(2):  # conditions must not carry over from one run to the next
            self._upload("counters", Phase.PREFILLED, Decision.VERIFY)
            self._device.issue(self._stream, Fill(self._arena["verified"]))
            self._device.replay(self._stream, graph)
            counters, verified, chained = map(self._download, ("counters", "verified", "chained"))
            complete = counters[0, Counter.PHASE] == Phase.COMPLETE
            if not complete or (verified != MARK).any() or chained.any():
                return False
        return True

    def _flow(self, verify: Graph, chain: Graph, skip: Graph) -> Flow:
        running, skips, verifies = Condition(), Condition(), Condition()
        counters, history = self._arena["counters"], self._arena["history"]
        route = Launch(ROUTE_STEP, (counters, skips, verifies, 1), block=self._device.threads_per_block)
        end = Launch(END_STEP, (counters, history, running, 1, STEPS), block=self._device.threads_per_block)
        body = (
            route,
            If(skips, (Embed(skip),)),
            Switch(verifies, ((Embed(verify),), (Embed(chain),))),
            end,
        )
        return end, While(running, body)

    def _captured(self, *calls: Call) -> Graph:
        self._device.begin_capture(self._stream)
        for call in calls:
            self._device.issue(self._stream, call)
        return self._device.end_capture(self._stream)

    def _upload(self, name: str, phase: Phase, decision: Decision) -> None:
        counters = np.zeros((1, len(Counter)), np.int32)
        counters[0, Counter.PHASE], counters[0, Counter.DECISION] = phase, decision
        self._device.upload(self._stream, self._arena[name], counters)

    def _download(self, name: str) -> np.ndarray:
        return self._device.download(self._stream, self._arena[name])


def try_flow(device: Device) -> None:
    """Assemble and run the flow.

    Raises:
        BackendError: the device refuses it, or runs other bodies than the kernels say.

    """
    plan = ArenaPlan()
    for name in ("counters", "skipping", "complete"):
        plan.add("trial", name, (1, len(Counter)), "int32")
    plan.add("trial", "history", (1, STEPS, len(StepColumn)), "int32")
    plan.add("trial", "verified", (16,), "uint8")
    plan.add("trial", "chained", (16,), "uint8")
    arena = Arena(device, plan, "free some")
    try:
        if not _Trial(device, device.stream(), arena).run():
            raise BackendError("its loop and branches did not run as its kernels said")
    finally:
        arena.close()


def main() -> int:
    """Try it on the GPU; the sentence of what failed is the last line on stderr."""
    try:
        device = open_gpu()
        device.use()
        try_flow(device)
    except VvsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
