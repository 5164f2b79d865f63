"""Replaying recorded traces through the device-resident loop on the host stand-in, in its checking mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from vvs.benchmarks.recorded_ties import RecordedTies
from vvs.benchmarks.recording import Recording, Trace
from vvs.benchmarks.replay import PUBLISHED_DEPTH, PUBLISHED_K, model_set
from vvs.codebook import Codebook
from vvs.engine import DraftResult
from vvs.export.bundle import export_bundle
from vvs.manifest import DRAFT_TREE
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.array import DeviceArray, host_view
from vvs.runtime.device.host import HostDevice
from vvs.runtime.device.host_engines import HostEngines
from vvs.runtime.device.loop import DeviceLoop
from vvs.runtime.device.onnxruntime_engines import OnnxRuntimeExecution
from vvs.runtime.kernels.host import HostKernels
from vvs.runtime.onnxruntime_engine import session_options
from vvs.statistics import StepKind
from vvs.uniforms import RecordedUniforms

FIELDS = {
    "tokens": "tree_tokens",
    "parents": "parents",
    "depth": "depth",
    "ancestors": "ancestors",
    "scores": "scores",
}


class RecordedEngines(HostEngines):
    """Engines whose drafted trees are completed from recordings where they are undefined."""

    def start(self, ties: Sequence[RecordedTies]) -> None:
        """Take the recordings of the next run. Without graphs, every draft is one step of it."""
        self._ties, self._drafts = ties, 0

    def execution(
        self,
        graph: str,
        inputs: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray],
        scratch: DeviceArray | None,
    ) -> OnnxRuntimeExecution:
        execution = super().execution(graph, inputs, outputs, scratch)
        if graph.startswith(DRAFT_TREE):
            views = {field: host_view(outputs[name]) for field, name in FIELDS.items()}
            execution.run = partial(self._draft, execution.run, views)  # type: ignore[method-assign]
        return execution

    def _draft(self, run: Callable[[], None], outputs: Mapping[str, np.ndarray]) -> None:
        run()
        for request, ties in enumerate(self._ties):
            row = {field: values[request : request + 1] for field, values in outputs.items()}
            completed = ties.complete(DraftResult(**row), self._drafts)
            for field, values in row.items():
                if field != "scores":
                    values[...] = getattr(completed, field)
        self._drafts += 1


class Replay:
    """The loop on a recording's models."""

    def __init__(
        self, recording: Recording, folder: Path, *, graphs: bool, whole_image: bool = False
    ) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the same image tokenizer every time, so that one export serves all tests
            models = model_set(recording, PUBLISHED_K, PUBLISHED_DEPTH)
        export_bundle(models, folder)
        bundle = Bundle.open(folder)
        neighbours = max(trace.settings["lantern_k"] for trace in recording.traces)
        codebook = Codebook.from_latents(recording.codebook, neighbours + 1)
        (self.tree,) = bundle.manifest.trees
        self.engines = RecordedEngines(bundle, session_options(1))
        self.loop = DeviceLoop(
            HostDevice(HostKernels(), check=True),
            self.engines,
            bundle,
            codebook,
            graphs=graphs,
            whole_image=whole_image,
        )

    def run(self, traces: Sequence[Trace]) -> int:
        """Run traces as one batch; decisions and tokens must be the recorded ones. Counts completed ties."""
        ties = [RecordedTies(None, trace) for trace in traces]  # type: ignore[arg-type]
        self.engines.start(ties)
        conditioning = {
            "hidden_states": np.concatenate([trace.arrays["caption"] for trace in traces]),
            "mask": np.concatenate([trace.arrays["caption_mask"] for trace in traces]) > 0,
        }
        streams = [RecordedUniforms(trace.arrays["uniforms"]) for trace in traces]
        steps: list[list[tuple[bool, int]]] = [[] for _ in traces]
        events = self.loop.run(conditioning, [trace.config(self.tree) for trace in traces], streams)
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                finished = end.value
                break
            for record in event.records:
                steps[record.request].append((record.kind is StepKind.SKIP, record.accept))
        for trace, taken, tokens in zip(traces, steps, finished.tokens, strict=True):
            kinds, accepted = trace.arrays["kind"].tolist(), trace.arrays["accept"].tolist()
            assert taken == list(zip(kinds, accepted, strict=True))[: len(taken)]
            np.testing.assert_array_equal(tokens, trace.arrays["tokens"])
        return sum(each.completed for each in ties)
