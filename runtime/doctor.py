"""Doctor: what this machine can run, and what to install for the rest.

Looks, and loads the GPU driver's library if there is one; starts nothing and allocates nothing.
"""

import ctypes
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vvs import __version__
from vvs.errors import BackendError
from vvs.runtime.backends import BACKENDS
from vvs.runtime.cpus import usable_cpus
from vvs.runtime.tensorrt_package import BACKENDS as TENSORRT_BACKENDS
from vvs.runtime.tensorrt_package import load_tensorrt

DRIVER_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
NAME_LENGTH = 128


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    ok: bool
    found: str
    advice: str = ""
    """What to do where it is not ok; empty if nothing needs to be done."""
    required: bool = False
    """Whether nothing can be generated without it."""


@dataclass(frozen=True)
class Report:
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether pictures can be generated on this machine."""
        return all(finding.ok for finding in self.findings if finding.required)

    def to_dict(self) -> dict[str, Any]:
        """Write as plain JSON values."""
        return {"healthy": self.healthy, "findings": [asdict(finding) for finding in self.findings]}


@dataclass(frozen=True)
class _Package:
    """A distribution and what it is for."""

    name: str
    purpose: str
    install: str
    required: bool = False


_PACKAGES = (
    _Package("numpy", "the algorithm", "pip install numpy", required=True),
    _Package("onnxruntime", "the CPU backend", "pip install onnxruntime", required=True),
    _Package("pillow", "PNG files", "pip install pillow", required=True),
    _Package("tokenizers", "prompts of words", "pip install tokenizers", required=True),
    _Package("torch", "exporting", "pip install 'vvs-toolkit[export]'"),
    _Package("onnx", "exporting", "pip install 'vvs-toolkit[export]'"),
    _Package("onnxscript", "exporting", "pip install 'vvs-toolkit[export]'"),
)

CUDA_MODULE = "cuda.bindings"


def examine() -> Report:
    """Look at this machine."""
    return Report(
        (
            *_machine(),
            *map(_package, _PACKAGES),
            *_providers(),
            *_backends(),
            _gpu(),
            *_engine_builders(),
            _cuda(),
        )
    )


def _machine() -> Iterator[Finding]:
    yield Finding("vvs", True, __version__, required=True)
    yield Finding("python", True, f"{platform.python_version()} on {platform.platform()}", required=True)
    yield Finding("cpu", True, f"{usable_cpus()} threads usable, {platform.machine()}", required=True)


def _package(package: _Package) -> Finding:
    subject = f"package {package.name}"
    try:
        return Finding(subject, True, version(package.name), required=package.required)
    except PackageNotFoundError:
        advice = f"for {package.purpose}: {package.install}"
        return Finding(subject, False, "not installed", advice, package.required)


def _providers() -> Iterator[Finding]:
    try:
        import onnxruntime
    except ImportError as error:
        yield Finding(
            "onnxruntime providers", False, str(error), "reinstall it: pip install onnxruntime", True
        )
        return
    from vvs.runtime.onnxruntime_graph import CUDA_INSTALL, CUDA_PROVIDER

    found = onnxruntime.get_available_providers()
    yield Finding("onnxruntime providers", True, ", ".join(found), required=True)
    if CUDA_PROVIDER in found:
        yield Finding("onnxruntime on CUDA", True, CUDA_PROVIDER)
    else:
        advice = f"for the backend onnxruntime-cuda: {CUDA_INSTALL}"
        yield Finding("onnxruntime on CUDA", False, f"no {CUDA_PROVIDER} in this package", advice)


def _backends() -> Iterator[Finding]:
    for backend in BACKENDS.values():
        missing = backend.missing
        found = f"lacks {', '.join(missing)}" if missing else backend.summary
        advice = backend.install if missing else ""
        yield Finding(f"backend {backend.name}", not missing, found, advice)


def _gpu() -> Finding:
    """Ask the driver which GPUs there are."""
    driver = _driver()
    if driver is None:
        return Finding(
            "gpu", False, "no NVIDIA driver", "only GPU backends need one; the CPU backend runs without"
        )
    status = driver.cuInit(0)
    if status:
        return Finding("gpu", False, f"the driver answers with CUDA error {status}", "check `nvidia-smi`")
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    names = [_device_name(driver, device) for device in range(count.value)]
    return Finding("gpu", bool(names), ", ".join(names) or "a driver, but no GPU")


def _driver() -> ctypes.CDLL | None:
    for library in DRIVER_LIBRARIES:
        try:
            return ctypes.CDLL(library)
        except OSError:
            continue
    return None


def _device_name(driver: ctypes.CDLL, device: int) -> str:
    name = ctypes.create_string_buffer(NAME_LENGTH)
    driver.cuDeviceGetName(name, NAME_LENGTH, device)
    return name.value.decode(errors="replace")


def _engine_builders() -> Iterator[Finding]:
    """Load each TensorRT, since an installed one may lack its libraries."""
    for backend in TENSORRT_BACKENDS:
        try:
            yield Finding(f"engines {backend}", True, load_tensorrt(backend).title)
        except BackendError as error:
            yield Finding(f"engines {backend}", False, "cannot be built here", str(error))


def _cuda() -> Finding:
    subject = f"module {CUDA_MODULE}"
    try:
        return Finding(subject, True, str(getattr(import_module(CUDA_MODULE), "__version__", "importable")))
    except Exception as error:  # a broken installation may raise anything
        reason = "not installed" if isinstance(error, ModuleNotFoundError) else f"broken: {error}"
        return Finding(subject, False, reason, "for CUDA from Python: pip install cuda-python")
