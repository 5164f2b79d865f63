"""Environment: the machine and the versions that a measurement was taken with."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vvs import __version__
from vvs.runtime.cpus import processor

PACKAGES = ("numpy", "onnxruntime", "torch", "onnx")


def environment(threads: int | None = None) -> dict[str, Any]:
    """Plain data: processor, threads, operating system, package versions, git revision."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads or len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "vvs": __version__,
        "packages": {name: _version(name) for name in PACKAGES},
        "revision": _revision(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The checked-out commit, with a plus when files differ from it; None outside a repository."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],  # noqa: S607
            cwd=here, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
