"""A fault at every call of the device, one at a time: the request fails in a sentence, the next one works."""

from __future__ import annotations

import logging
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest

from vvs.errors import BackendError
from vvs.runtime.device.host import HostDevice
from vvs.runtime.device.loop import DeviceLoop
from vvs.runtime.pipeline import Pipeline

pytest.importorskip("onnxruntime")

PROMPT, SEED = "a red dress", 3
STEPS = 6
"""Steps until every kind has been drafted, verified, skipped, captured and replayed."""


class Saboteur:
    """Counts the device's calls and lets one of them fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails_at: int | None = None

    def __call__(self, call: str) -> None:
        self.calls.append(call)
        if len(self.calls) - 1 == self.fails_at:
            raise BackendError(f"{call} failed: injected")

    def arm(self, call: int | None) -> None:
        self.calls.clear()
        self.fails_at = call


def pipeline_of(bundle: Path, saboteur: Saboteur, *, graphs: bool, whole_image: bool = False) -> Pipeline:
    options = {"threads": 1, "check": True, "cuda_graphs": graphs, "hook": saboteur}
    options["whole_image_graph"] = whole_image
    return Pipeline.from_bundle(bundle, "cuda-on-host", **options)


def loop_of(pipeline: Pipeline) -> DeviceLoop:
    loop = pipeline._loop
    assert isinstance(loop, DeviceLoop)
    return loop


def device_of(pipeline: Pipeline) -> HostDevice:
    device = loop_of(pipeline)._device
    assert isinstance(device, HostDevice)
    return device


def first_steps(pipeline: Pipeline) -> np.ndarray:
    """Tokens known after some steps of a run that is then closed."""
    steps = pipeline.stream(PROMPT, "vvs", SEED)
    try:
        *_, last = islice(steps, STEPS)
        return last.tokens(0)
    finally:
        steps.close()


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "plain"])
def test_a_fault_anywhere_in_the_first_steps(
    tiny_bundle: Path, graphs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="vvs.device")
    saboteur = Saboteur()
    expected = first_steps(Pipeline.from_bundle(tiny_bundle, threads=1))
    pipeline = pipeline_of(tiny_bundle, saboteur, graphs=graphs)
    failed, survived, sentences = [], [], []
    for place in count():
        loop_of(pipeline).release()  # so that memory is taken and steps are captured in every run
        saboteur.arm(place)
        try:
            np.testing.assert_array_equal(first_steps(pipeline), expected)
        except BackendError as error:
            sentences.append(str(error))
            failed.append(saboteur.calls[-1])
        else:
            if len(saboteur.calls) <= place:
                break  # the fault lies behind the end of the run
            survived.append(saboteur.calls[place])
        saboteur.arm(None)
        np.testing.assert_array_equal(first_steps(pipeline), expected)
        # What failed has given everything back: the memory of one idle session is all that is held.
        assert len(device_of(pipeline)._held) == 3
    assert all(sentence.endswith("failed: injected") for sentence in sentences)
    kinds = {call.split()[0] for call in failed}
    assert {"allocate", "pinned", "stream", "issue", "run", "upload", "download", "synchronise"} <= kinds
    # A capture that fails is no failed request: the step is launched plainly.
    assert ("begin_capture" in survived) == graphs
    assert "begin_capture" not in failed


def test_a_fault_at_the_end_of_a_run_or_while_decoding(tiny_bundle: Path) -> None:
    saboteur = Saboteur()
    pipeline = pipeline_of(tiny_bundle, saboteur, graphs=False)
    expected = pipeline.generate(PROMPT, "vvs", SEED)
    saboteur.arm(None)
    pipeline.generate(PROMPT, "vvs", SEED)
    total = len(saboteur.calls)
    for place in range(total - 40, total):
        saboteur.arm(place)
        with pytest.raises(BackendError, match="failed: injected"):
            pipeline.generate(PROMPT, "vvs", SEED)
        saboteur.arm(None)
        again = pipeline.generate(PROMPT, "vvs", SEED)
        np.testing.assert_array_equal(again.tokens, expected.tokens)
        np.testing.assert_array_equal(again.pixels, expected.pixels)


def test_a_fault_anywhere_while_a_whole_image_is_captured_and_decoded(
    tiny_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every tenth call, and around them all that begin, assemble or replay a graph."""
    caplog.set_level(logging.ERROR, logger="vvs.device")
    saboteur = Saboteur()
    expected = Pipeline.from_bundle(tiny_bundle, threads=1).generate(PROMPT, "vvs", SEED).tokens
    pipeline = pipeline_of(tiny_bundle, saboteur, graphs=True, whole_image=True)
    pipeline.generate(PROMPT, "vvs", SEED)
    loop_of(pipeline).release()
    saboteur.arm(None)
    pipeline.generate(PROMPT, "vvs", SEED)
    calls = list(saboteur.calls)
    around = {"begin_capture", "assemble", "replay", "end_capture", "synchronise"}
    places = [place for place, call in enumerate(calls) if place % 10 == 0 or call in around]
    survived, sentences = set(), []
    for place in places:
        pipeline = pipeline_of(tiny_bundle, saboteur, graphs=True, whole_image=True)
        saboteur.arm(place)
        try:
            np.testing.assert_array_equal(pipeline.generate(PROMPT, "vvs", SEED).tokens, expected)
        except BackendError as error:
            sentences.append(str(error))
        else:
            survived.add(calls[place])
        saboteur.arm(None)
        np.testing.assert_array_equal(pipeline.generate(PROMPT, "vvs", SEED).tokens, expected)
        assert len(device_of(pipeline)._held) == 5  # of a session four, of the image decoder one
        pipeline._loop.close()
    assert all(sentence.endswith("failed: injected") for sentence in sentences)
    assert {"begin_capture", "assemble", "replay"} <= survived
