"""DeviceSession: the memory, engines and graphs of runs of one shape, and the beats of a run over them.

Belongs to one run at a time; the next run of the same shape takes it over, with everything that was captured.
Nothing is allocated within a run.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.engine import Conditioning
from vvs.errors import BackendError, VvsError
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.arena import Arena
from vvs.runtime.device.calls import Fill, Program
from vvs.runtime.device.graphs import ProgramRunner
from vvs.runtime.device.interface import Device, EngineSet, Pinned
from vvs.runtime.device.programs import Programs, ReadBack
from vvs.runtime.device.run_inputs import RunInputs
from vvs.runtime.device.run_plan import RunPlan, RunShape, carried
from vvs.runtime.device.step_trees import StepTrees, TreeNames
from vvs.runtime.kernels.state import FAULT_SENTENCES, Counter, Fault
from vvs.skipping import Dynamic
from vvs.uniforms import Uniforms

ADVICE = "give fewer requests at once with --batch, or a smaller draft tree"
_logger = logging.getLogger("vvs.device")


class Seen(NamedTuple):
    """What the host knows of a run after a read-back. Copies: the next read-back changes nothing in them."""

    counters: NDArray[np.int32]  # [R, counters]
    known: NDArray[np.int32]  # [R, known_capacity]

    def column(self, counter: Counter) -> NDArray[np.int32]:
        """One counter of all requests, ``[R]``."""
        return self.counters[:, counter]


class DeviceSession:
    """Runs of one shape.

    Args:
        device: what runs them.
        engines: the bundle's engines on it.
        bundle: embeddings and manifest.
        codebook: of the bundle.
        shape: requests and trees.
        graphs: whether steps are captured and replayed.

    Raises:
        BackendError: the device has not enough memory, or an engine has no profile for these shapes.

    """

    def __init__(
        self,
        device: Device,
        engines: EngineSet,
        bundle: Bundle,
        codebook: Codebook,
        shape: RunShape,
        *,
        graphs: bool,
    ) -> None:
        self.shape = shape
        self._device = device
        self._given_back = ExitStack()
        plan = RunPlan(bundle.manifest, shape, codebook.neighbours)
        self._most_steps = plan.geometry.image_tokens
        memory = plan.lay_out(engines.scratch_bytes(plan.graphs), backup=graphs)
        _logger.info("%s: a run of %d requests takes %s", device.name, shape.requests, memory.describe())
        with ExitStack() as opened:
            arena = Arena(device, memory, ADVICE)
            opened.callback(arena.close)
            self._stream = device.stream()
            self._counters, self._known = (self._pin(opened, arena, name) for name in ("counters", "known"))
            read_back = ReadBack(self._counters.array, self._known.array)
            self._programs = Programs(device, engines, plan, arena.arrays, read_back)
            self._inputs = RunInputs(device, self._stream, plan, arena.arrays)
            self._inputs.constants(bundle, codebook)
            self._state, compared = carried(arena.arrays)
            backup = arena.arrays.get("backup")
            self._runner = ProgramRunner(device, self._stream, self._state, compared, backup)
            opened.callback(self._runner.close)
            self._given_back = opened.pop_all()

    @property
    def graphs(self) -> int:
        """Steps that are captured so far."""
        return self._runner.graphs

    def begin(
        self, conditioning: Conditioning, configs: Sequence[GenerationConfig], streams: Sequence[Uniforms]
    ) -> Seen:
        """Take a batch: run the prompts and sample the first roots."""
        self._first = True
        self._plain = any(config.tree is None for config in configs)
        self._similarity = any(isinstance(config.skipping, Dynamic) for config in configs)
        self.trees = StepTrees(configs, self.shape.trees)
        self._device.issue(self._stream, Fill(self._state))
        self._numbers = self._inputs.settings(configs, streams)
        self._inputs.prompts(conditioning)
        self._launch(self._programs.encode_prompt)
        self._inputs.prompt_rows()
        self._launch(self._programs.prefill)
        return self._seen()

    def propose(self, trees: TreeNames) -> Seen:
        """Draft these trees and decide; the one place in a step where the host waits."""
        kind = (self._first, self._plain, self._similarity)
        first, plain, similarity = kind
        program = self._programs.propose(trees, first=first, plain=plain, similarity=similarity)
        self._runner.run(("propose", trees, *kind), program)
        self._first = False
        return self._seen()

    def skip(self) -> None:
        """Let those skip that decided so."""
        self._runner.run("skip", self._programs.skip)

    def verify(self, *, chain: bool) -> None:
        """Let those verify that decided so; ``chain`` says whether any request has one."""
        self._runner.run(("verify", chain), self._programs.verify(chain=chain))

    def capture_all(self) -> None:
        """Run every kind of step once, whatever was decided: kernels leave requests alone that it is not for.

        What the requests come to is of no use afterwards; the next batch begins anew.
        """
        self.propose(self.trees.of(0, 0, 0))
        self.verify(chain=False)
        if self.shape.trees:
            for trees in self.trees.kinds(self._most_steps):
                self.propose(trees)
            self.skip()
            self.verify(chain=True)
        self.read()

    def read(self) -> Seen:
        """Wait for all that is queued and read back."""
        self._launch(self._programs.read)
        return self._seen()

    def close(self) -> None:
        """Give everything back."""
        self._given_back.close()

    def _seen(self) -> Seen:
        self._device.synchronise(self._stream)
        seen = Seen(self._counters.read().copy(), self._known.read().copy())
        faults = seen.column(Counter.FAULT)
        if faults.any():
            raise BackendError(FAULT_SENTENCES[Fault(int(faults[faults != 0][0]))])
        if (seen.column(Counter.CURSOR) > self._numbers).any():
            raise VvsError(
                f"all {int(self._numbers.min())} recorded uniforms are used up: "
                "this run takes other decisions than the one that was recorded"
            )
        return seen

    def _launch(self, program: Program) -> None:
        for call in program:
            self._device.issue(self._stream, call)

    def _pin(self, opened: ExitStack, arena: Arena, name: str) -> Pinned:
        array = arena[name]
        pinned = self._device.pinned(array.shape, array.dtype)
        opened.callback(self._device.free_pinned, pinned)
        return pinned
