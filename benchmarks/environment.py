"""Environment: the machine, the bundle and the versions that a measurement was taken with."""

import hashlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vvs import __version__
from vvs.manifest import Manifest
from vvs.runtime.cpus import processor, usable_cpus
from vvs.runtime.cuda_driver import find_driver

PACKAGES = (
    "numpy",
    "onnxruntime",
    "onnxruntime-gpu",
    "torch",
    "onnx",
    "tensorrt",
    "tensorrt-rtx-cu13-libs",
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
)
DRIVER_VERSION = Path("/sys/module/nvidia/version")


def environment(threads: int | None = None) -> dict[str, Any]:
    """Plain data: processor, threads, GPUs, driver, operating system, package versions, git revision."""
    driver = find_driver()
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads or usable_cpus(),
        "gpus": [f"{gpu.name} ({gpu.arch})" for gpu in driver.gpus] if driver else [],
        "driver": {"version": _driver_version(), "cuda": list(driver.cuda)} if driver else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "vvs": __version__,
        "packages": {name: installed(name) for name in PACKAGES},
        "revision": _revision(),
    }


def bundle_identity(manifest: Manifest) -> dict[str, Any]:
    """Plain data: what a bundle is called, and SHA-256 of its sources and of its files."""
    files = "".join(f"{spec.sha256} {name}\n" for name, spec in sorted(manifest.files.items()))
    return {
        "name": manifest.name,
        "precision": manifest.precision,
        "source": manifest.source,
        "files": hashlib.sha256(files.encode()).hexdigest(),
    }


def _driver_version() -> str | None:
    """The NVIDIA kernel driver's own version, where the system tells."""
    try:
        return DRIVER_VERSION.read_text().strip()
    except OSError:
        return None


def installed(name: str) -> str | None:
    """Version of an installed package; None if it is not."""
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
