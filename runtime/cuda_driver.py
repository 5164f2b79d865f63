"""The NVIDIA driver, asked through its own library: is there one, how new is it, which GPUs are there.

Needs no CUDA package, starts no context and allocates nothing.
"""

import ctypes
from dataclasses import dataclass

LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
NAME_LENGTH = 128
# CUdevice_attribute
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    arch: str
    """Such as ``sm_89``."""


@dataclass(frozen=True)
class Driver:
    """A driver that could be loaded."""

    cuda: tuple[int, int]
    """Newest CUDA version it runs."""
    gpus: tuple[Gpu, ...]


def find_driver() -> Driver | None:
    """The driver of this machine; None where there is none."""
    library = _library()
    if library is None:
        return None
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda = (version.value // 1000, version.value % 1000 // 10)
    if library.cuInit(0):
        return Driver(cuda, ())
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return Driver(cuda, tuple(_gpu(library, device) for device in range(count.value)))


def _library() -> ctypes.CDLL | None:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _gpu(library: ctypes.CDLL, device: int) -> Gpu:
    name = ctypes.create_string_buffer(NAME_LENGTH)
    library.cuDeviceGetName(name, NAME_LENGTH, device)
    parts = []
    for attribute in (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR):
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        parts.append(value.value)
    return Gpu(name.value.decode(errors="replace"), f"sm_{parts[0]}{parts[1]}")
