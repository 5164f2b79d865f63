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
from vvs.runtime.device.flow import Graph
from vvs.runtime.device.graphs import ProgramRunner
from vvs.runtime.device.history import History
from vvs.runtime.device.interface import Device, EngineSet, Pinned
from vvs.runtime.device.programs import Programs, ReadBack
from vvs.runtime.device.run_inputs import RunInputs
from vvs.runtime.device.run_plan import RunPlan, RunShape, carried
from vvs.runtime.device.step_trees import StepTrees, TreeNames
from vvs.runtime.device.whole_image import BatchKind, WholeImage, WholeImageUse
from vvs.runtime.kernels.state import FAULT_SENTENCES, Counter, Fault, Phase
from vvs.skipping import Dynamic, Never
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

    @property
    def complete(self) -> bool:
        """Whether all images are known."""
        return bool((self.column(Counter.PHASE) == Phase.COMPLETE).all())


class Decoded(NamedTuple):
    """What the host knows of images that one graph has decoded."""

    seen: Seen
    history: History


class DeviceSession:
    """Runs of one shape.

    Args:
        device: what runs them.
        engines: the bundle's engines on it.
        bundle: embeddings and manifest.
        codebook: of the bundle.
        shape: requests and trees.
        graphs: whether steps are captured and replayed.
        whole: whether images may be decoded as one graph; needs ``graphs``.

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
        whole: bool = False,
    ) -> None:
        self.shape = shape
        self._first = True
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
            self._history = self._pin(opened, arena, "history") if whole else None
            history = self._history.array if self._history else None
            read_back = ReadBack(self._counters.array, self._known.array, history)
            self._programs = Programs(device, engines, plan, arena.arrays, read_back)
            self._inputs = RunInputs(device, self._stream, plan, arena.arrays)
            self._inputs.constants(bundle, codebook)
            self._state, compared = carried(arena.arrays)
            backup = arena.arrays.get("backup")
            self._runner = ProgramRunner(device, self._stream, self._state, compared, backup)
            opened.callback(self._runner.close)
            self._whole = WholeImage(device, self._programs, self._runner)
            opened.callback(self._whole.close)
            self._given_back = opened.pop_all()

    @property
    def graphs(self) -> int:
        """Steps that are captured so far."""
        return self._runner.graphs

    def begin(
        self, conditioning: Conditioning, configs: Sequence[GenerationConfig], streams: Sequence[Uniforms]
    ) -> Seen:
        """Take a batch: run the prompts and sample the first roots."""
        self.trees = StepTrees(configs, self.shape.trees)
        self._kind = BatchKind(
            first=self.trees.of(0, 0, 0),
            trees=self.shape.trees,
            plain=any(config.tree is None for config in configs),
            similarity=any(isinstance(config.skipping, Dynamic) for config in configs),
            skips=any(not isinstance(config.skipping, Never) for config in configs),
        )
        self._numbers = self._inputs.settings(configs, streams)
        self._inputs.prompts(conditioning)
        return self._prefill()

    def capture_image(self) -> None:
        """Capture all that decoding as one graph wants; the batch stands as it was begun."""
        if not self._whole.is_captured(self._kind):
            self._whole.capture(self._kind)
            self._prefill()

    def image_graph(self) -> Graph:
        """The graph of the batch that was begun.

        Raises:
            BackendError: it cannot be made.

        """
        return self._whole.graph(self._kind)

    def decode(self, use: WholeImageUse) -> Decoded | None:
        """Decode what was begun to its end as one graph; the one place where the host waits for it.

        None where that cannot be done: ``use`` is given up, and the batch stands as it was begun.
        """
        self.capture_image()
        queued = False
        with use.attempt():
            self._device.replay(self._stream, self.image_graph())
            queued = True
        if not queued:
            return None
        self._launch(self._programs.read_history)
        seen = self._seen()
        if not seen.complete:
            use.give_up("it ended before the images were complete")
            self._prefill()
            return None
        return Decoded(seen, self._told(seen))

    def propose(self, trees: TreeNames) -> Seen:
        """Draft these trees and decide; the one place in a step where the host waits."""
        kind = (self._first, self._kind.plain, self._kind.similarity)
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

    def _prefill(self) -> Seen:
        """Run the prompts with the settings that were uploaded."""
        self._first = True
        self._device.issue(self._stream, Fill(self._state))
        self._launch(self._programs.encode_prompt)
        self._inputs.prompt_rows()
        self._launch(self._programs.prefill)
        return self._seen()

    def _told(self, seen: Seen) -> History:
        if self._history is None:
            raise ValueError("this session was opened without a history")
        return History(seen.column(Counter.STEPS), self._history.read().copy(), seen.known)

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
