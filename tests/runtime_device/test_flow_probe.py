"""Whether flows can be assembled, found out in another process: what it says, and that it is asked once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from vvs.errors import BackendError
from vvs.runtime.cuda_driver import Driver
from vvs.runtime.device import flow_probe, flow_trial
from vvs.runtime.device.host import HostDevice
from vvs.runtime.device.host_graphs import HostFlow
from vvs.runtime.kernels.host import HostKernels

CORE = SimpleNamespace(__version__="1.2", graph=SimpleNamespace(GraphDefinition=object))


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    flow_probe.tried.cache_clear()
    yield
    flow_probe.tried.cache_clear()


def trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> Path:
    """Let the trial be a module of these lines; each run leaves a line in the file that is returned."""
    ran = tmp_path / "ran"
    lines = f"with open({str(ran)!r}, 'a') as file: file.write('once\\n')\n{text}\n"
    (tmp_path / "a_trial.py").write_text(lines)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(flow_probe, "TRIAL", "a_trial")
    monkeypatch.setattr(flow_probe, "find_driver", lambda: None)
    return ran


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended its process with SIGSEGV"),
        ("import sys; sys.exit('no GPU')", "a small one failed: no GPU"),
        ("import sys; sys.exit(3)", "a small one failed: exit status 3"),
        ("raise ImportError('nothing')", "a small one failed: ImportError: nothing"),
    ],
)
def test_what_a_trial_comes_to_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, reason: str
) -> None:
    ran = trial(monkeypatch, tmp_path, text)
    for _ in range(3):
        assert flow_probe.why_no_flows(CORE).endswith(reason)
    assert bool(flow_probe.why_no_flows(CORE)) == bool(reason)
    assert ran.read_text().splitlines() == ["once"]


def test_a_trial_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trial(monkeypatch, tmp_path, "import time; time.sleep(60)")
    monkeypatch.setattr(flow_probe, "TIMEOUT_S", 0.5)
    assert flow_probe.why_no_flows(CORE) == "a small one did not end within 0.5 s"


def test_no_process_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trial(monkeypatch, tmp_path, "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert "no process can be started to try a small one" in flow_probe.why_no_flows(CORE)


def test_an_old_driver_or_package_is_not_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = trial(monkeypatch, tmp_path, "")
    old = SimpleNamespace(__version__="0.3")
    assert "cuda-core 0.3 cannot define graphs; update it with `pip install" in flow_probe.why_no_flows(old)
    monkeypatch.setattr(flow_probe, "find_driver", lambda: Driver((12, 4), ()))
    assert flow_probe.why_no_flows(CORE) == (
        "the driver runs CUDA 12.4, and loops in graphs need 12.8; update the driver"
    )
    assert not ran.exists()
    monkeypatch.setattr(flow_probe, "find_driver", lambda: Driver((12, 8), ()))
    assert flow_probe.why_no_flows(CORE) == ""
    assert ran.exists()


def test_the_trial_without_a_gpu_says_so_on_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vvs.runtime.device.flow_trial"],
        capture_output=True,
        text=True,
        check=False,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "the backend 'cuda'" in done.stderr.splitlines()[-1] or "no GPU" in done.stderr.splitlines()[-1]


class RunsOtherBodies(HostDevice):
    """A device that takes every loop for an end."""

    def assemble(self, flow: tuple) -> HostFlow:  # type: ignore[type-arg]
        return super().assemble(())


def test_a_trial_that_runs_other_bodies_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = RunsOtherBodies(HostKernels(), check=True)
    with pytest.raises(BackendError, match="did not run as its kernels said"):
        flow_trial.try_flow(device)
    assert not device._held
    monkeypatch.setattr(flow_trial, "open_gpu", lambda: device)
    assert flow_trial.main() == 1
    assert capsys.readouterr().err.endswith("did not run as its kernels said\n")
    monkeypatch.setattr(flow_trial, "open_gpu", lambda: HostDevice(HostKernels(), check=True))
    assert flow_trial.main() == 0
