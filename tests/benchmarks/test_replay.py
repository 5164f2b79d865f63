"""Replaying recordings: files are told by what they hold, and any difference is an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from vvs.benchmarks.recording import Recording
from vvs.benchmarks.replay import main
from vvs.errors import VvsError

DATA = Path(__file__).resolve().parents[1] / "data"
GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden"
PARTS = ("target_weights", "drafter_weights", "codebook", "target_kv", "trace_vvs_uniform2")


def run(*arguments: str) -> tuple[int, str]:
    import typer

    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """The small recording that everyone has, under names that say nothing."""
    for i, name in enumerate(PARTS):
        (tmp_path / f"{i}.npz").symlink_to(DATA / f"{name}.npz")
    return tmp_path


def tampered(folder: Path, file: str, **changes: np.ndarray) -> None:
    path = folder / file
    with np.load(path) as arrays:
        changed = dict(arrays) | changes
    path.unlink()
    np.savez(path, **changed)


def test_a_whole_generation_through_pytorch_and_onnx_runtime(recording: Path) -> None:
    code, output = run(str(recording))
    assert code == 0, output
    lines = output.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["4.npz", "eager"], ["4.npz", "onnxruntime"]]
    assert all("117 steps" in line and "tokens equal 256/256  ok" in line for line in lines[:2])
    assert lines[-1] == "2 of 2 replays are equal token for token"


def test_one_other_token_is_a_difference(recording: Path) -> None:
    tokens = Recording.read(recording).traces[0].arrays["tokens"].copy()
    tokens[-1] = (tokens[-1] + 1) % 512
    tampered(recording, "4.npz", tokens=tokens)
    code, output = run(str(recording), "--engine", "eager")
    assert code == 1
    assert "tokens equal 255/256  DIFFERS" in output


def test_other_random_numbers_are_a_difference(recording: Path) -> None:
    uniforms = Recording.read(recording).traces[0].arrays["uniforms"].copy()
    tampered(recording, "4.npz", uniforms=uniforms[::-1])
    code, output = run(str(recording), "--engine", "eager")
    assert code == 1
    assert "DIFFERS" in output


@pytest.mark.slow
def test_everything_recorded_through_every_engine() -> None:
    if not GOLDEN.is_dir():
        pytest.skip("the full recordings are not here: no ../shared/golden")
    code, output = run(str(GOLDEN))
    assert code == 0, output
    assert output.count("  ok") == 2 * len(list(GOLDEN.glob("trace_*.npz")))


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (0, "holds no target"),
        (1, "holds no drafter"),
        (2, "holds no codebook"),
        (3, "recorded target pass"),
        (4, "holds no trace"),
    ],
)
def test_what_a_recording_lacks_is_named(recording: Path, missing: int, message: str) -> None:
    (recording / f"{missing}.npz").unlink()
    with pytest.raises(VvsError, match=message):
        Recording.read(recording)


def test_bad_folders(tmp_path: Path) -> None:
    code, output = run(str(tmp_path))
    assert code == 2
    assert "holds no .npz file" in " ".join(output.split())
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not really")
    code, output = run(str(tmp_path))
    assert code == 2
    assert "is not a readable .npz file" in " ".join(output.split())
    code, output = run(str(tmp_path), "--engine", "warp")
    assert code == 2
