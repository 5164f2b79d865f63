"""Compiling the kernels with a C++ compiler for the host, and running them there: a stand-in for a GPU.

Blocks run one after the other, each with one thread. How long that takes says nothing of a GPU.
"""

import ctypes
import os
import shutil
import subprocess
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from vvs.errors import BackendError
from vvs.runtime.device.calls import CONDITION, Kernel, Parameter
from vvs.runtime.kernels import cache as compiled
from vvs.runtime.kernels.sources import checked_source, source
from vvs.runtime.kernels.table import KERNELS
from vvs.runtime.whole_file import whole_file

COMPILERS = ("g++", "clang++", "c++")
OPTIONS = ("-std=c++17", "-O2", "-ffp-contract=off", "-fno-strict-aliasing")
LIBRARY_OPTIONS = ("-shared", "-fPIC", "-fvisibility=hidden")
LAUNCH = 'extern "C" __attribute__((visibility("default"))) int vvs_host_launch('

_SCALARS: dict[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    CONDITION: ctypes.c_uint64,
}


class HostKernels:
    """The kernels, compiled for the host. May be shared between threads.

    Args:
        defines: macros to compile with; for tests.

    Raises:
        BackendError: there is no C++ compiler, or it fails.

    """

    def __init__(self, defines: tuple[str, ...] = ()) -> None:
        self._defines = defines

    @cached_property
    def _library(self) -> ctypes.CDLL:
        return ctypes.CDLL(str(built(_library_source(), ".so", LIBRARY_OPTIONS, self._defines)))

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int],
        block: int,
        shared_bytes: int,
        arguments: tuple[int | float, ...],
    ) -> None:
        """Run a kernel to its end, whatever ``block`` with one thread per block; pointers are addresses."""
        values = [
            scalar(parameter, argument)
            for parameter, argument in zip(kernel.parameters, arguments, strict=True)
        ]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        name = kernel.name.encode()
        if not self._library.vvs_host_launch(name, pointers, ctypes.c_uint(grid[0]), ctypes.c_uint(grid[1])):
            raise BackendError(f"there is no kernel {kernel.name}")


def scalar(parameter: Parameter, argument: int | float) -> Any:
    """An argument as C has it, its own kind of ctypes object."""
    if parameter.pointer:
        return ctypes.c_void_p(int(argument))
    return _SCALARS[parameter.dtype](argument)


def built(text: str, suffix: str, options: tuple[str, ...], defines: tuple[str, ...] = ()) -> Path:
    """Compile a text of C++, or take what came of it from the cache.

    Args:
        text: the whole translation unit.
        suffix: of the file to make.
        options: more options for the compiler.
        defines: macros.

    Raises:
        BackendError: there is no C++ compiler, it fails, or the cache cannot be written.

    """
    compiler = find_compiler()
    flags = (*OPTIONS, *options, *(f"-D{name}" for name in defines))
    name = f"host-{compiled.key(text, *flags, _version(compiler))}{suffix}"
    path = compiled.folder() / name
    if path.exists():
        return path
    try:
        with whole_file(path) as temporary:
            _compile(compiler, text, flags, temporary)
    except OSError as error:
        raise BackendError(
            f"kernels compiled for the host cannot be kept in {path.parent} ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return path


def find_compiler() -> str:
    """Path of a C++ compiler: ``$CXX``, or the first of those usually there.

    Raises:
        BackendError: there is none.

    """
    wanted = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, [wanted] if wanted else COMPILERS)), None)
    if found is None:
        missing = f"CXX names {wanted!r}, which" if wanted else f"none of {', '.join(COMPILERS)}"
        raise BackendError(
            f"the host stand-in for a GPU compiles its kernels with a C++ compiler, but {missing} is to be "
            "found; install one (on Debian `apt install g++`), or set CXX"
        )
    return found


def launchers() -> str:
    """C++ that finds a kernel by its name."""
    cases = "\n".join(
        f'  if (!std::strcmp(name, "{kernel.name}")) {{\n'
        f"    launch({kernel.name}, arguments, grid, threads);\n    return true;\n  }}"
        for kernel in KERNELS
    )
    return (
        f"{source('host_launch.hpp')}\n"
        "namespace host {\n"
        "inline bool launch_by_name(const char* name, void* const* arguments, Index grid,\n"
        "                           unsigned int threads) {\n"
        f"{cases}\n  return false;\n}}\n}}  // namespace host\n"
    )


def _library_source() -> str:
    return (
        f"{checked_source()}\n{launchers()}\n"
        f"{LAUNCH}const char* name, void* const* arguments, unsigned int x, unsigned int y) {{\n"
        "  return host::launch_by_name(name, arguments, {x, y, 1}, 1);\n}\n"
    )


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603


def _compile(compiler: str, text: str, flags: tuple[str, ...], path: Path) -> None:
    command = [compiler, *flags, "-x", "c++", "-", "-o", str(path)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise BackendError(
            f"{compiler} cannot compile the kernels for the host: {done.stderr.strip()[:2000]}"
        )
