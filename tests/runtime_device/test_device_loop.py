"""The device-resident loop against the host: the same tokens, steps and counts in every mode and mixture."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vvs.errors import BackendError, SettingsError
from vvs.runtime.backends import open_engine
from vvs.runtime.bundle import Bundle
from vvs.runtime.pipeline import Generation, Pipeline
from vvs.runtime.settings import resolve
from vvs.skipping import SKIP_POLICIES, StepView

pytest.importorskip("onnxruntime")

PROMPTS = ["a red dress", "blue shirt", "green shoe"]
SEEDS = [3, 4, 5]
MODES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ar", {}),
    ("ar", {"temperature": 0.7, "top_k": 20, "top_p": 0.9}),
    ("eagle", {}),
    ("eagle", {"temperature": 0}),
    ("lantern", {"acceptance": "lantern:k=16,delta=0.4"}),
    ("lantern++", {"acceptance": "lantern++:k=16,lam=3"}),
    ("vvs", {"policy": "uniform:2"}),
    ("vvs", {"policy": "dynamic:0.05", "selector": "confident"}),
    ("vvs", {"policy": "uniform:3", "selector": "sampled"}),
    ("vvs", {"policy": "share:0.4", "selector": "sampled:temperature=0.5"}),
    ("vvs", {"policy": "share:0.7"}),
    ("vvs", {"policy": "uniform:2", "temperature": 0}),
)


@pytest.fixture(scope="module")
def host(tiny_bundle: Path) -> Pipeline:
    return Pipeline.from_bundle(tiny_bundle, threads=1)


FORMS: dict[str, dict[str, bool]] = {
    "graphs": {},
    "plain": {"cuda_graphs": False},
    "whole image": {"whole_image_graph": True},
}


@pytest.fixture(scope="module", params=FORMS)
def device(tiny_bundle: Path, request: pytest.FixtureRequest) -> Pipeline:
    options = {"threads": 1, "check": True, **FORMS[request.param]}
    return Pipeline.from_bundle(tiny_bundle, "cuda-on-host", **options)


def same(ours: Generation, theirs: Generation) -> None:
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_array_equal(ours.pixels, theirs.pixels)
    for a, b in zip(ours.statistics, theirs.statistics, strict=True):
        assert a.forward_passes == b.forward_passes
        assert a.accepted == b.accepted


@pytest.mark.parametrize(("mode", "options"), MODES)
def test_draws_what_the_host_draws(
    host: Pipeline, device: Pipeline, mode: str, options: dict[str, Any]
) -> None:
    config = resolve(host.bundle.manifest, mode, **options)
    same(device.generate(PROMPTS, config, SEEDS), host.generate(PROMPTS, config, SEEDS))


def test_modes_may_be_mixed_in_one_batch(host: Pipeline, device: Pipeline) -> None:
    configs = [resolve(host.bundle.manifest, mode, **options) for mode, options in MODES]
    prompts = [PROMPTS[i % 3] for i in range(len(configs))]
    seeds = list(range(len(configs)))
    same(
        device.generate(prompts, configs, seeds, batch=4),
        host.generate(prompts, configs, seeds, batch=4),
    )


def test_streams_step_by_step(host: Pipeline, device: Pipeline) -> None:
    theirs = list(host.stream(PROMPTS, "vvs", SEEDS))
    ours = list(device.stream(PROMPTS, "vvs", SEEDS))
    assert [step.known for step in ours] == [step.known for step in theirs]
    assert [step.kinds for step in ours] == [step.kinds for step in theirs]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.tokens(1), b.tokens(1))
    np.testing.assert_array_equal(ours[5].preview(0), theirs[5].preview(0))


def test_a_closed_run_leaves_no_trace(host: Pipeline, device: Pipeline) -> None:
    for steps_taken in (1, 2, 5):
        steps = device.stream(PROMPTS, "vvs", SEEDS)
        for _ in range(steps_taken):
            next(steps)
        steps.close()
        same(device.generate(PROMPTS, "vvs", SEEDS), host.generate(PROMPTS, "vvs", SEEDS))


def test_threads_share_a_pipeline(host: Pipeline, device: Pipeline) -> None:
    def draw(seed: int) -> np.ndarray:
        return device.generate(PROMPTS[:2], None, seed).tokens

    with ThreadPoolExecutor(2) as threads:
        at_once = list(threads.map(draw, range(4)))
    for seed, tokens in enumerate(at_once):
        np.testing.assert_array_equal(tokens, host.generate(PROMPTS[:2], None, seed).tokens)


def test_warming_up_captures_every_kind_of_step(
    host: Pipeline, tiny_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    options = {"threads": 1, "check": True, "hook": calls.append}
    pipeline = Pipeline.from_bundle(tiny_bundle, "cuda-on-host", **options)
    pipeline.warm_up(PROMPTS, "vvs", batch=3)
    captured = calls.count("begin_capture")
    assert captured == 5  # two ways to propose, skip, and a verification with and without a chain
    calls.clear()
    same(pipeline.generate(PROMPTS, "vvs", SEEDS), host.generate(PROMPTS, "vvs", SEEDS))
    assert calls.count("begin_capture") == calls.count("allocate") == calls.count("pinned") == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    pipeline.warm_up(PROMPTS[0], "ar")
    same(pipeline.generate(PROMPTS[0], "ar", 3), host.generate(PROMPTS[0], "ar", 3))
    host.warm_up(PROMPTS, "vvs")


def test_a_step_waits_once_and_allocates_nothing(tiny_bundle: Path) -> None:
    calls: list[str] = []
    pipeline = Pipeline.from_bundle(tiny_bundle, "cuda-on-host", threads=1, hook=calls.append)
    pipeline.warm_up(PROMPTS[0], "vvs")
    waits = []
    for progress in pipeline.stream(PROMPTS[0], "vvs", 3):
        waits.append(calls.count("synchronise"))
        calls.clear()
        if progress.known[0] > 20:
            break
    assert waits[2:] == [1] * len(waits[2:])
    assert not {"allocate", "upload", "download"} & set(calls)


def test_says_what_it_allocates_before_it_does(tiny_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle, "cuda-on-host", threads=1, memory=100_000)
    with (
        caplog.at_level(logging.INFO, logger="vvs.device"),
        pytest.raises(
            BackendError, match=r"has 0\.1 MB free, but this run needs .* MB: .*KV caches.*--batch"
        ),
    ):
        pipeline.generate(PROMPTS)
    assert "a run of 3 requests takes" in caplog.text


@dataclass(frozen=True)
class Always:
    """A policy of one's own, which no kernel knows."""

    def wants(self, view: StepView) -> bool:
        return True


def test_what_it_cannot_do_is_a_sentence(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle, "cuda-on-host", threads=1)
    with pytest.raises(SettingsError, match=r"at most 4"):
        pipeline.generate(PROMPTS, batch=5)
    with pytest.raises(BackendError, match="'cuda-on-host' decides on the device"):
        open_engine(Bundle.open(tiny_bundle), "cuda-on-host", {"threads": 1})
    monkeypatch.setitem(SKIP_POLICIES._types, "always", Always)
    with pytest.raises(SettingsError, match=r"skip policy always.* has no kernel.*--backend onnxruntime"):
        pipeline.generate(PROMPTS, pipeline.configure("vvs", policy="always"))
