"""CUDA failures as sentences: what was being done, what CUDA calls it, and what mends it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vvs.errors import BackendError, VvsError
from vvs.runtime.cuda_driver import Driver, find_driver

INSTALL = "pip install 'vvs-toolkit[cuda]'"
OTHER_WAY = "run the bundle with --backend onnxruntime"
NO_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
LOST = (
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_NO_DEVICE",
    "CUDA_ERROR_UNKNOWN",
)
"""After these, nothing works any more in this process."""


def require_driver(cuda: int) -> Driver:
    """The driver of this machine, with at least one GPU.

    Args:
        cuda: major version of CUDA that the packages need.

    Raises:
        BackendError: no driver, one too old, or no GPU.

    """
    driver = find_driver()
    if driver is None:
        raise BackendError(
            f"the backend 'cuda' needs an NVIDIA driver for CUDA {cuda}, and this machine has none; "
            f"install one, or {OTHER_WAY}"
        )
    if driver.cuda[0] < cuda:
        raise BackendError(
            f"the driver runs CUDA {'.'.join(map(str, driver.cuda))}, but the backend 'cuda' needs "
            f"CUDA {cuda}; update the driver, or {OTHER_WAY}"
        )
    if not driver.gpus:
        raise BackendError(f"there is an NVIDIA driver but no GPU; check `nvidia-smi`, or {OTHER_WAY}")
    return driver


@contextmanager
def told(action: str) -> Iterator[None]:
    """Turn whatever CUDA raises inside into one BackendError about ``action``."""
    try:
        yield
    except VvsError:
        raise
    except Exception as error:  # cuda.core raises its own types, and RuntimeError where no driver loads
        raise sentence(action, error) from error


def sentence(action: str, error: Exception) -> BackendError:
    """One failed action in words."""
    said = " ".join(str(error).split())
    if NO_MEMORY in said:
        return BackendError(
            f"the GPU ran out of memory while {action}; free some, or give fewer requests at once "
            "with --batch"
        )
    if any(name in said for name in LOST):
        return BackendError(
            f"the GPU was lost while {action} ({said}); start the process again, and check `nvidia-smi` "
            "if it happens twice"
        )
    return BackendError(f"CUDA failed while {action}: {said or type(error).__name__}")


def require_success(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a driver call; raises RuntimeError with the error's name if it failed."""
    status, *values = result
    if int(status):
        raise RuntimeError(getattr(status, "name", str(status)))
    return tuple(values)
