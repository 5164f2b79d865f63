"""A whole image as one graph: what it waits for, tells and falls back from.

That it draws the same is tested with the other forms, in `test_device_loop.py`, `test_skip_trees.py` and
`test_golden_on_device.py`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vvs.errors import BackendError, SettingsError
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.array import host_view
from vvs.runtime.device.flow import Flow, Graph
from vvs.runtime.device.host import HostDevice
from vvs.runtime.device.host_engines import HostEngines
from vvs.runtime.device.host_graphs import HostFlow
from vvs.runtime.device.interface import Stream
from vvs.runtime.device.loop import DeviceLoop
from vvs.runtime.kernels.host import HostKernels
from vvs.runtime.kernels.state import FAULT_SENTENCES, Fault
from vvs.runtime.onnxruntime_engine import session_options
from vvs.runtime.pipeline import CancelledError, Pipeline
from vvs.statistics import Span, StepKind

pytest.importorskip("onnxruntime")

PROMPTS = ["a red dress", "blue shirt", "green shoe"]
SEEDS = [3, 4, 5]


def pipeline_of(bundle: Path, **options: Any) -> Pipeline:
    return Pipeline.from_bundle(
        bundle, "cuda-on-host", threads=1, check=True, whole_image_graph=True, **options
    )


def on(device: HostDevice, bundle: Path) -> Pipeline:
    """A pipeline on a device of a test's own."""
    opened = Bundle.open(bundle)
    engines = HostEngines(opened, session_options(1))
    return Pipeline(opened, DeviceLoop(device, engines, opened, opened.codebook, whole_image=True))


@pytest.fixture(scope="module")
def host(tiny_bundle: Path) -> Pipeline:
    return Pipeline.from_bundle(tiny_bundle, threads=1)


def test_the_host_waits_once_per_batch_and_captures_once(tiny_bundle: Path, host: Pipeline) -> None:
    calls: list[str] = []
    pipeline = pipeline_of(tiny_bundle, hook=calls.append)
    pipeline.warm_up(PROMPTS, "vvs")
    assert calls.count("assemble") == 1
    waits = []
    for _ in pipeline.stream(PROMPTS, "vvs", SEEDS):
        waits.append(calls.count("synchronise"))
        if len(waits) == 1:
            calls.clear()  # the prompts
        if len(waits) == 2:
            assert calls.count("replay") == calls.count("synchronise") == 1
            assert not {"assemble", "begin_capture", "allocate", "pinned", "upload", "download"} & set(calls)
    assert waits[1:-1] == [1] * len(waits[1:-1])
    assert len(waits) > 20


def test_other_modes_of_the_same_shape_are_assembled_anew(tiny_bundle: Path, host: Pipeline) -> None:
    calls: list[str] = []
    pipeline = pipeline_of(tiny_bundle, hook=calls.append)
    similar = pipeline.configure("vvs", policy="dynamic:0.05")
    for settings, assembled in (("eagle", 1), ("vvs", 2), (similar, 3), ("eagle", 3), ("vvs", 3)):
        ours, theirs = (each.generate(PROMPTS[0], settings, 3) for each in (pipeline, host))
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)
        assert calls.count("assemble") == assembled


def test_times_of_steps_are_unknown_and_said_to_be(tiny_bundle: Path) -> None:
    (statistics,) = pipeline_of(tiny_bundle).generate(PROMPTS[0], "vvs", 3).statistics
    assert statistics.untimed_steps == statistics.steps > 0
    assert statistics.steps_of(StepKind.SKIP) > 0
    written = statistics.to_dict()
    assert written["step_seconds"] is None
    assert written["outside_engines"] is None
    assert statistics.seconds[Span.DEVICE] > 0
    assert statistics.seconds[Span.PREFILL] > 0
    assert statistics.seconds[Span.DRAFT] == statistics.seconds[Span.TARGET] == 0


def test_a_run_is_cancelled_between_images(tiny_bundle: Path, host: Pipeline) -> None:
    class Asked:
        count = 0

        def is_set(self) -> bool:
            self.count += 1
            return self.count > 3

    pipeline = pipeline_of(tiny_bundle)
    with pytest.raises(CancelledError):
        pipeline.generate(PROMPTS, "vvs", SEEDS, batch=1, cancel=Asked())
    ours, theirs = (each.generate(PROMPTS, "vvs", SEEDS) for each in (pipeline, host))
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)


def test_it_needs_captured_steps(tiny_bundle: Path) -> None:
    with pytest.raises(SettingsError, match="whole_image_graph is set but cuda_graphs is not"):
        pipeline_of(tiny_bundle, cuda_graphs=False)


class NoFlows(HostDevice):
    """A device whose trial ended its process."""

    asked = 0

    def why_no_flows(self) -> str:
        self.asked += 1
        return "a small one ended its process with SIGSEGV"


class RefusedFlow(HostDevice):
    """A device that refuses to make the graph."""

    def assemble(self, flow: Flow) -> HostFlow:
        raise BackendError("invalid argument")


class RefusedCapture(HostDevice):
    """A device that captures nothing."""

    def end_capture(self, stream: Stream) -> Graph:
        raise BackendError("operation not permitted when stream is capturing")


class RefusedLaunch(HostDevice):
    """A device that does not launch the graph."""

    def replay(self, stream: Stream, graph: Graph) -> None:
        if isinstance(graph, HostFlow):
            raise BackendError("invalid graph")
        super().replay(stream, graph)


class EndsEarly(HostDevice):
    """A device whose loops never run."""

    def assemble(self, flow: Flow) -> HostFlow:
        return super().assemble(flow[:-2])


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (NoFlows, "ended its process with SIGSEGV"),
        (RefusedFlow, "invalid argument"),
        (RefusedCapture, "a part of a step cannot be captured"),
        (RefusedLaunch, "invalid graph"),
        (EndsEarly, "it ended before the images were complete"),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_where_it_cannot_be_done_steps_are_run_with_one_warning(
    tiny_bundle: Path,
    host: Pipeline,
    caplog: pytest.LogCaptureFixture,
    broken: type[HostDevice],
    reason: str,
    warm: bool,
) -> None:
    pipeline = on(broken(HostKernels(), check=True), tiny_bundle)
    with caplog.at_level(logging.WARNING, logger="vvs.device"):
        if warm:
            pipeline.warm_up(PROMPTS, "vvs")
        for _ in range(2):
            ours, theirs = (each.generate(PROMPTS, "vvs", SEEDS) for each in (pipeline, host))
            np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    whole = [record for record in caplog.records if "whole image" in record.message]
    assert len(whole) == 1
    assert reason in whole[0].message
    assert "images are decoded step by step, which draws the same" in whole[0].message
    assert all(statistics.untimed_steps == 0 for statistics in ours.statistics)


def test_a_device_is_asked_once_and_only_if_it_is_wanted(tiny_bundle: Path) -> None:
    device = NoFlows(HostKernels(), check=True)
    pipeline = on(device, tiny_bundle)
    for _ in range(2):
        pipeline.generate(PROMPTS[0], "ar", 3)
    assert device.asked == 1
    device = NoFlows(HostKernels(), check=True)
    bundle = Bundle.open(tiny_bundle)
    loop = DeviceLoop(device, HostEngines(bundle, session_options(1)), bundle, bundle.codebook)
    Pipeline(bundle, loop).generate(PROMPTS[0], "ar", 3)
    assert device.asked == 0


def test_a_fault_on_the_device_ends_the_graph_in_a_sentence(tiny_bundle: Path, host: Pipeline) -> None:
    """Logits that are no numbers, from the fifth pass of the target on."""
    pipeline = pipeline_of(tiny_bundle)
    pipeline.warm_up(PROMPTS[0], "vvs")
    session = pipeline._loop._idle  # type: ignore[attr-defined]
    logits = session._programs._arrays["logits"]
    passes = 0

    def spoil(call: str) -> None:
        nonlocal passes
        passes += call == "run target"
        if call == "run vvs_accept" and passes > 5:
            host_view(logits)[...] = np.nan

    session._device.called = spoil
    with pytest.raises(BackendError, match=FAULT_SENTENCES[Fault.LOGITS]):
        pipeline.generate(PROMPTS[0], "vvs", 3)
    assert passes == 6
    session._device.called = lambda call: None
    ours, theirs = (each.generate(PROMPTS[0], "vvs", 3) for each in (pipeline, host))
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
