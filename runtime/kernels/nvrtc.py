"""Compiling the kernels for a GPU with NVRTC. Needs no GPU and no driver.

Contraction of multiply and add is off: the kernels compute what numpy computes, in the same roundings.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from vvs.errors import BackendError
from vvs.runtime.kernels import cache
from vvs.runtime.kernels.sources import ENTRY, checked_source
from vvs.runtime.kernels.table import KERNELS
from vvs.runtime.whole_file import whole_file

OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")
INSTALL = "pip install 'vvs-toolkit[cuda]'"


@dataclass(frozen=True)
class Resources:
    """What one kernel takes, as the compiler reports it."""

    registers: int
    """Per thread."""
    shared_bytes: int
    """Per block."""
    stack_bytes: int
    """Local memory per thread."""
    spill_bytes: int
    """Of it, stores and loads of registers that did not fit."""


@dataclass(frozen=True)
class Cubin:
    """All kernels, compiled for one architecture."""

    arch: str
    code: bytes
    report: str
    """What the assembler said of each kernel."""

    @property
    def modules(self) -> Mapping[str, bytes]:
        """Of each kernel's name the code that holds it."""
        return {kernel.name: self.code for kernel in KERNELS}

    @property
    def resources(self) -> Mapping[str, Resources]:
        """What each kernel takes, by its name."""
        return read_report(self.report)


def compile_cubin(arch: str) -> Cubin:
    """Compile all kernels for an architecture such as ``sm_89``, or take them from the cache.

    The cache is keyed by source, options, architecture and the compiler's version; where it cannot be
    written, nothing is kept.

    Raises:
        BackendError: NVRTC is not installed, or it cannot compile for this architecture.

    """
    nvrtc = load_nvrtc()
    name = f"{arch}-{cache.key(checked_source(), *OPTIONS, arch, compiler_version(nvrtc))}"
    code, report = (cache.folder() / f"{name}.{kind}" for kind in ("cubin", "txt"))
    if code.exists() and report.exists():
        return Cubin(arch, code.read_bytes(), report.read_text(encoding="utf-8"))
    cubin = _compile(nvrtc, arch)
    with suppress(OSError):
        for path, content in ((report, cubin.report.encode()), (code, cubin.code)):
            with whole_file(path) as temporary:
                temporary.write_bytes(content)
    return cubin


def load_nvrtc() -> Any:
    """Import NVRTC's bindings and load its library.

    Raises:
        BackendError: one of them is missing, with the command that installs both.

    """
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
        compiler_version(nvrtc)
    except Exception as error:  # a broken installation may raise anything
        raise BackendError(
            f"compiling kernels needs NVRTC, which cannot be loaded ({error}); install it with `{INSTALL}`"
        ) from error
    return nvrtc


def compiler_version(nvrtc: Any) -> str:
    """NVRTC's version, such as ``13.0``."""
    major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    return f"{major}.{minor}"


def read_report(report: str) -> Mapping[str, Resources]:
    """Read the assembler's report of every kernel.

    Raises:
        BackendError: a kernel is not in it, so the compiler writes its reports in another way.

    """
    found = {}
    for section in re.split(r"Compiling entry function ", report)[1:]:
        name, numbers = re.match(r"'(\w+)'", section), _numbers(section)
        if name and numbers:
            found[name[1]] = numbers
    missing = [kernel.name for kernel in KERNELS if kernel.name not in found]
    if missing:
        raise BackendError(f"the compiler's report says nothing of {', '.join(missing)}")
    return found


def _numbers(section: str) -> Resources | None:
    memory = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", section)
    registers = re.search(r"Used (\d+) registers", section)
    shared = re.search(r"(\d+) bytes smem", section)
    if not memory or not registers:
        return None
    stack, stores, loads = map(int, memory.groups())
    return Resources(int(registers[1]), int(shared[1]) if shared else 0, stack, stores + loads)


def _compile(nvrtc: Any, arch: str) -> Cubin:
    known = [f"sm_{number}" for number in _checked(nvrtc, nvrtc.nvrtcGetSupportedArchs())[0]]
    if arch not in known:
        raise BackendError(
            f"NVRTC {compiler_version(nvrtc)} cannot compile for {arch!r}; it knows {', '.join(known)}"
        )
    (program,) = _checked(
        nvrtc, nvrtc.nvrtcCreateProgram(checked_source().encode(), ENTRY.encode(), 0, [], [])
    )
    try:
        options = [option.encode() for option in (f"--gpu-architecture={arch}", *OPTIONS)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BackendError(f"the kernels do not compile for {arch}: {log.decode().strip()}")
        code = _text(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return Cubin(arch, code, log.decode().rstrip("\0"))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(nvrtc: Any, size_of: Any, read: Any, program: Any) -> bytes:
    (size,) = _checked(nvrtc, size_of(program))
    memory = bytes(size)
    _checked(nvrtc, read(program, memory))
    return memory


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BackendError(f"NVRTC failed with {status.name}")
    return tuple(values)
