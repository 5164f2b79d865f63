"""``vvs build`` and the engines in ``vvs inspect``: sentences and exit codes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from vvs.cli.app import app
from vvs.runtime.bundle import Bundle
from vvs.runtime.engine_file import engine_file


def vvs(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--arch", "sm_70"], 2, "--arch has sm_70, but TensorRT for RTX"),
        (["--arch", "ada"], 2, "--arch has 'ada', but an architecture looks like sm_89"),
        (["--backend", "trt"], 2, "--backend is 'trt', but it must be one of tensorrt, tensorrt-rtx"),
        (["--arch", "sm_89", "--graph", "vae"], 2, "--graph is 'vae', but the bundle has encode_prompt"),
        (["--arch", "sm_89", "--batch", "9"], 2, "--batch goes to 9, but the bundle holds at most 4"),
        (["--arch", "sm_89", "--min-shapes", "x:1"], 2, "shapes are given for all graphs"),
        (["--arch", "sm_89", "--graph", "target", "--opt-shapes", "x"], 2, "--opt-shapes has 'x'"),
        (["--arch", "sm_89", "--graph", "target", "--opt-shapes", "x:1"], 2, "the inputs of target are"),
        (["--arch", "sm_89", "--builder-optimization-level", "9"], 2, "must lie in 0..5"),
        (["--arch", "sm_89", "--mem-pool-size", "2048"], 2, "must look like workspace:2048"),
        (["--arch", "sm_89", "--version-compatible"], 2, "it ships no lean runtime"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    tiny_bundle: Path, arguments: list[str], code: int, sentence: str
) -> None:
    result = vvs("build", tiny_bundle, *arguments)
    assert result.exit_code == code
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("vvs: ")
    assert sentence in line


@pytest.mark.usefixtures("rtx", "no_driver")
def test_without_arch_and_gpu_it_says_what_to_name(tiny_bundle: Path) -> None:
    result = vvs("build", tiny_bundle)
    assert result.exit_code == 1
    assert "this machine has no NVIDIA driver; name one with --arch" in result.stderr


def test_builds_nothing_twice(own: Bundle) -> None:
    arguments = ("--arch", "sm_89,sm_120", "--graph", "encode_prompt", "--batch", "2")
    result = vvs("build", own.path, *arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("is up to date, nothing to do") == 2


def test_no_room_for_engines(own: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is built; what is up to date needs none, nor do engines without weights."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    before = {path.name: path.stat().st_ino for path in own.path.iterdir()}
    arguments = ("--arch", "sm_89,sm_120", "--batch", "2", "--quiet")
    result = vvs("build", own.path, *arguments)
    assert result.exit_code == 1
    (line,) = result.stderr.strip().splitlines()
    assert re.fullmatch(
        r"vvs: the engines will take about [\d.]+ MB, but only 1 kB are free at .*own; "
        "free some, or choose another place",
        line,
    )
    assert {path.name: path.stat().st_ino for path in own.path.iterdir()} == before
    assert vvs("build", own.path, *arguments, "--graph", "encode_prompt").exit_code == 0


def test_inspect_shows_engines(own: Bundle) -> None:
    result = vvs("inspect", own.path, "--json")
    engines = json.loads(result.stdout)["engines"]
    assert {(e["file"], e["usable"]) for e in engines} == {
        ("encode_prompt.sm_120.engine", True),
        ("encode_prompt.sm_89.engine", True),
    }
    engine_file(own.path, "encode_prompt", "sm_89").write_bytes(b"half")
    result = vvs("inspect", own.path)
    assert result.exit_code == 0
    assert "Engines" in result.stdout
    assert "tensorrt_rtx" in result.stdout
    (refusal,) = [line for line in result.stdout.splitlines() if line.startswith("refused: ")]
    assert "encode_prompt.sm_89.engine has 4 bytes, but its record says" in refusal
    assert "rebuild it with `vvs build" in refusal
