"""Traces: every span is in the file, nested as it was, and nothing is observed unless asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from vvs.cli.app import app
from vvs.errors import SettingsError
from vvs.observing import current_observer
from vvs.runtime.pipeline import Pipeline
from vvs.runtime.tracing import traced


def test_a_generation_becomes_a_trace(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "trace.json"
    given = ["generate", tiny_bundle, "a red dress", "-o", tmp_path / "o", "--trace", out, "--threads", 1]
    result = CliRunner().invoke(app, [str(argument) for argument in given])
    assert result.exit_code == 0, result.output
    events = json.loads(out.read_text())["traceEvents"]
    assert {event["name"] for event in events} == {"prefill", "draft", "target", "accept", "commit", "decode"}
    assert all(event["ph"] == "X" and event["dur"] > 0 for event in events)
    in_turn = sorted(events, key=lambda event: float(event["ts"]))
    ends = [event["ts"] + event["dur"] for event in in_turn]
    assert all(end <= later["ts"] for end, later in zip(ends, in_turn[1:], strict=False))
    assert in_turn[0]["name"] == "prefill"
    assert in_turn[-1]["name"] == "decode"


def test_nvtx_ranges_are_pushed_and_popped(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package nvtx, which only a profiler would hear."""
    heard: list[str] = []
    stand_in = SimpleNamespace(
        __spec__=SimpleNamespace(),
        push_range=lambda name, domain: heard.append(f"{domain} {name}"),
        pop_range=lambda domain: heard.append(domain),
    )
    monkeypatch.setitem(sys.modules, "nvtx", stand_in)
    monkeypatch.setattr("vvs.runtime.tracing.find_spec", lambda name: name)
    pipeline = Pipeline.from_bundle(tiny_bundle, threads=1)
    with traced(None, nvtx=True):
        pipeline.generate("a red dress", "vvs", 0)
    assert heard[:2] == ["vvs prefill", "vvs"]
    assert heard.count("vvs") == len(heard) / 2
    assert "vvs decode" in heard
    heard.clear()
    pipeline.generate("a red dress", "vvs", 0)
    assert heard == []


def test_without_nvtx_it_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vvs.runtime.tracing.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="need the package nvtx"), traced(None, nvtx=True):
        pass
    assert current_observer() is None


def test_nothing_is_written_when_the_generation_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), traced(tmp_path / "t.json"):
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    assert current_observer() is None
