"""``make gpu-check`` without a GPU: its flow on the stand-in, its report, and its parts on made-up tests.

The hardware is what is missing: device and engines are the stand-in's, and compute-sanitizer is a script.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

pytest.importorskip("onnxscript")

from vvs.benchmarks import gpu_check
from vvs.benchmarks.gpu_check import main
from vvs.benchmarks.gpu_latency import copy_bandwidth
from vvs.benchmarks.gpu_report import Check, Finding, GpuReport, NotHereError, Status, make
from vvs.benchmarks.gpu_tests import Selection, run_tests, sanitize
from vvs.errors import BackendError
from vvs.runtime.device.host import HostDevice
from vvs.runtime.kernels.host import HostKernels

DATA = Path(__file__).resolve().parents[1] / "data"
PARTS = ("target_weights", "drafter_weights", "codebook", "target_kv", "trace_vvs_uniform2")


@pytest.fixture
def kernel_tests(tmp_path: Path) -> Path:
    """Tests that stand for the project's own, since a test that runs all tests runs itself."""
    (tmp_path / "tests" / "runtime_kernels").mkdir(parents=True)
    file = tmp_path / "tests" / "runtime_kernels" / "test_on_devices.py"
    file.write_text("def test_the_host_stand_in(): pass\n\ndef test_a_gpu(): assert False\n")
    return tmp_path / "tests"


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for name in PARTS:
        (folder / f"{name}.npz").symlink_to(DATA / f"{name}.npz")
    return folder


def run(*arguments: object) -> Result:
    app = Typer()
    app.command()(main)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_all_checks_on_the_stand_in(
    tiny_bundle: Path, kernel_tests: Path, recordings: Path, tmp_path: Path
) -> None:
    result = run(
        tiny_bundle, "--device", "host", "--out", tmp_path / "out", "--tests", kernel_tests,
        "--recordings", recordings,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "the-host-stand-in-for-a-gpu.json").read_text())
    page = (tmp_path / "out" / "the-host-stand-in-for-a-gpu.md").read_text()
    assert report["stand_in"]
    assert "**This is no GPU.**" in page
    statuses = {check["name"]: check["status"] for check in report["checks"]}
    assert statuses == {
        "kernels and device against numpy": "passed",
        "the CPU's pictures, cuda-on-host": "passed",
        "recorded runs, cuda-on-host": "passed",
        "graphs against plain launches, cuda-on-host": "passed",
        "a whole image as one graph, cuda-on-host": "passed",
        "step latencies, cuda-on-host": "passed",
        "memcheck": "skipped",
        "racecheck": "skipped",
    }
    remarks = " ".join(check["remark"] for check in report["checks"])
    assert "1 of 1 recorded runs came out token for token" in remarks
    assert "ran every kind of step: AR, decide, draft, prefill" in remarks
    assert not any({"bandwidth", "graphs_seconds"} & set(check["figures"]) for check in report["checks"])


def test_without_a_gpu_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise BackendError("there is no GPU here")

    monkeypatch.setattr(gpu_check, "load_packages", absent)
    result = run("engines/none", "--out", tmp_path)
    assert result.exit_code == 2
    assert "there is no GPU here" in result.output
    assert not list(tmp_path.iterdir())


def test_when_time_is_up_the_rest_is_skipped(tiny_bundle: Path, kernel_tests: Path, tmp_path: Path) -> None:
    result = run(
        tiny_bundle, "--device", "host", "--out", tmp_path, "--tests", kernel_tests, "--minutes", "0"
    )
    assert result.exit_code == 0
    (file,) = tmp_path.glob("*.json")
    assert {check["status"] for check in json.loads(file.read_text())["checks"]} == {"skipped"}


def test_a_failed_check_is_told_and_does_not_stop_the_others() -> None:
    def broken() -> Finding:
        raise ValueError("odd")

    def absent() -> Finding:
        raise NotHereError("not here")

    made = (make("a", broken), make("b", absent), make("c", lambda: Finding(False, "2 | 3")))
    assert [check.status for check in made] == [Status.FAILED, Status.SKIPPED, Status.FAILED]
    assert made[0].remark == "ValueError: odd"
    where = {"packages": {"numpy": "2", "torch": None}, "processor": "p", "system": "s", "python": "3",
             "driver": {"version": None, "cuda": [13, 0]}, "revision": "abc"}  # fmt: skip
    bundle = {"name": "demo", "precision": "fp32"}
    timed = Check("t", Status.PASSED, "", 1.0, {"table": [{"step": "AR", "measured, ms": "1"}]})
    report = GpuReport("NVIDIA H200 (x)", False, where, bundle, (*made, timed))
    assert report.failed
    assert report.file_name == "nvidia-h200-x"
    assert "| c | failed | 2 / 3 |" in report.page()
    assert "driver of unknown version for CUDA 13.0; numpy 2" in report.page()
    assert "| AR | 1 |" in report.page()
    assert "no GPU" not in report.page()


def test_tests_are_counted_and_failures_named(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(
        "import pytest\ndef test_right(): pass\ndef test_wrong(): assert 0\n"
        "def test_absent(): pytest.skip('no')\n"
    )
    found = run_tests(Selection((file,)), 60)
    assert not found.passed
    assert found.remark.startswith("1 passed, 1 failed, 1 skipped: ")
    assert "test_wrong" in found.remark
    assert run_tests(Selection((file,), ("-k", "right")), 60).passed
    with pytest.raises(NotHereError, match="all 1 tests that were selected skipped themselves"):
        run_tests(Selection((file,), ("-k", "absent")), 60)
    with pytest.raises(NotHereError, match="there are no tests at"):
        run_tests(Selection((tmp_path / "none",)), 60)
    with pytest.raises(NotHereError, match="was not done when the time"):
        run_tests(Selection((file,)), 0.01)


@pytest.mark.parametrize(("status", "passed"), [(0, True), (86, False), (1, False)])
def test_the_sanitizer_is_believed(tmp_path: Path, status: int, passed: bool) -> None:
    """A script in its place: it says what it was asked and ends with a status."""
    program, file = tmp_path / "compute-sanitizer", tmp_path / "test_some.py"
    file.touch()
    program.write_text(f'#!/bin/sh\necho "$@"\necho "========= ERROR SUMMARY: 0 errors"\nexit {status}\n')
    program.chmod(0o755)
    found = sanitize("racecheck", program, Selection((file,)), 60)
    assert found.passed is passed
    assert "ERROR SUMMARY: 0 errors" in found.remark
    if not passed:
        assert "--tool racecheck --error-exitcode 86" in found.figures["output"]
    with pytest.raises(NotHereError, match="it comes with the CUDA toolkit"):
        sanitize("memcheck", None, Selection((file,)), 60)


def test_the_probe_gives_its_memory_back() -> None:
    device = HostDevice(HostKernels(), check=True, memory=1 << 20)
    before = device.free_bytes()
    assert copy_bandwidth(device, 1 << 10) > 0
    assert device.free_bytes() == before
