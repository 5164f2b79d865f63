"""Recorded runs of the published implementation, token for token through the very code that runs on a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from replaying import Replay

from vvs.benchmarks.recording import Recording
from vvs.tree_shape import TreeShape

DATA = Path(__file__).resolve().parents[1] / "data"
GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden"
PARTS = ("target_weights", "drafter_weights", "codebook", "target_kv", "trace_vvs_uniform2")


FORMS = {
    "plain": {"graphs": False},
    "graphs": {"graphs": True},
    "whole image": {"graphs": True, "whole_image": True},
}


def replay_of(folder: Path, request: pytest.FixtureRequest, form: str) -> tuple[Replay, Recording]:
    # Tokens do not depend on the image tokenizer, so that all recordings of these models share one bundle.
    recording = replace(Recording.read(folder), vq=None)
    return Replay(recording, request.config.cache.mkdir("vvs") / "recording", **FORMS[form]), recording


@pytest.mark.parametrize("form", ["graphs", "whole image"])
def test_a_recorded_run_replayed_as_graphs(tmp_path: Path, request: pytest.FixtureRequest, form: str) -> None:
    for name in PARTS:
        (tmp_path / f"{name}.npz").symlink_to(DATA / f"{name}.npz")
    replay, recording = replay_of(tmp_path, request, form)
    assert replay.run(recording.traces) == 0


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_all_recorded_runs_in_one_batch(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Exact, LANTERN and LANTERN++, never, uniformly and dynamically skipped, side by side in every step."""
    if not GOLDEN.is_dir():
        pytest.skip("the full recordings are not here: no ../shared/golden")
    # Where a nucleus is too small for a tree, a recording hangs a tied node one level deeper than it can be.
    monkeypatch.setattr(TreeShape, "longest_path", property(lambda shape: shape.depth + 3))
    replay, recording = replay_of(GOLDEN, request, form)
    traces = recording.traces
    if form != "plain":  # a captured step runs twice, so that a draft cannot be told to be a recording's step
        traces = tuple(trace for trace in traces if trace.settings["top_p"] == 1)
    completed = replay.run(traces)
    assert (completed > 0) == (form == "plain")
