"""GpuTests: the project's own tests as checks: those that need a GPU, and kernels under compute-sanitizer."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from vvs.benchmarks.gpu_report import Finding, NotHereError

SANITIZER = "compute-sanitizer"
CUDA_HOMES = ("CUDA_HOME", "CUDA_PATH")
DEFAULT_CUDA_HOME = "/usr/local/cuda"
FOUND_SOMETHING = 86
"""Exit status that the sanitizer is told to give where it finds something."""
NOTHING_SELECTED = 5
"""Exit status of pytest where no test was selected."""
SHOWN = 3


@dataclass(frozen=True)
class Selection:
    """Which tests a check runs."""

    paths: tuple[Path, ...]
    arguments: tuple[str, ...] = ()
    """Of pytest, such as ``-m gpu``."""

    def command(self, report: Path | None = None) -> list[str]:
        """What runs them."""
        written = [f"--junitxml={report}"] if report else []
        return [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *self.arguments, *written,
            *map(str, self.paths),
        ]  # fmt: skip


def run_tests(selection: Selection, seconds: float) -> Finding:
    """Run tests in a process of their own.

    Args:
        selection: which.
        seconds: after which they are given up.

    """
    _require(selection)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        status, output = _run(selection.command(report), seconds)
        if not report.is_file():
            return Finding(False, f"pytest ended with status {status} and no report: {_last_line(output)}")
        counts, failures = read_junit(report)
    if status == NOTHING_SELECTED or counts["tests"] == counts["skipped"]:
        raise NotHereError(f"all {counts['tests']} tests that were selected skipped themselves")
    remark = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    if failures:
        remark += f": {'; '.join(failures[:SHOWN])}"
    return Finding(not counts["failed"] and status == 0, remark, {**counts, "failures": failures})


def read_junit(report: Path) -> tuple[dict[str, int], list[str]]:
    """Counts of pytest's report, and the names of tests that failed."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))  # noqa: S314
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    counts = {
        "tests": len(cases),
        "passed": len(cases) - len(failed) - skipped,
        "failed": len(failed),
        "skipped": skipped,
    }
    return counts, [f"{case.get('classname')}.{case.get('name')}" for case in failed]


def find_sanitizer() -> Path | None:
    """compute-sanitizer on the path or in a CUDA toolkit."""
    homes = [os.environ[name] for name in CUDA_HOMES if name in os.environ]
    places = [str(Path(home) / "bin") for home in (*homes, DEFAULT_CUDA_HOME)]
    found = shutil.which(SANITIZER) or shutil.which(SANITIZER, path=os.pathsep.join(places))
    return Path(found) if found else None


def sanitize(tool: str, sanitizer: Path | None, selection: Selection, seconds: float) -> Finding:
    """Run tests under one tool of compute-sanitizer.

    Args:
        tool: ``memcheck`` or ``racecheck``.
        sanitizer: the program; None is nowhere.
        selection: tests that launch kernels.
        seconds: after which it is given up.

    """
    if sanitizer is None:
        raise NotHereError(
            f"{SANITIZER} is not on the path nor in {DEFAULT_CUDA_HOME}; it comes with the CUDA toolkit"
        )
    _require(selection)
    options = ["--tool", tool, "--error-exitcode", str(FOUND_SOMETHING), "--target-processes", "all"]
    status, output = _run([str(sanitizer), *options, *selection.command()], seconds)
    summary = next((line for line in reversed(output.splitlines()) if "ERROR SUMMARY" in line), "")
    summary = summary.strip("= ") or _last_line(output)
    if status == NOTHING_SELECTED:
        raise NotHereError("no test was selected")
    if status == FOUND_SOMETHING:
        return Finding(False, f"{tool} found something: {summary}", {"output": output[-4000:]})
    return Finding(status == 0, f"{tool}: {summary}", {} if status == 0 else {"output": output[-4000:]})


def _require(selection: Selection) -> None:
    for path in selection.paths:
        if not path.exists():
            raise NotHereError(f"there are no tests at {path}; run it from a checkout of the repository")


def _run(command: Sequence[str], seconds: float) -> tuple[int, str]:
    if seconds <= 0:
        raise NotHereError("no time was left for it")
    process = subprocess.Popen(  # noqa: S603 - commands of this module
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)  # its children too
        process.communicate()
        raise NotHereError(
            f"it was not done when the time for all checks was up ({seconds:.0f} s)"
        ) from error
    return process.returncode, output


def _last_line(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "it said nothing")
