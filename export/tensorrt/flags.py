"""BuildFlags: what the builder is told, apart from shapes; every flag means what it means to trtexec."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from vvs.errors import SettingsError
from vvs.runtime.tensorrt_package import TensorRT

LEVELS = range(6)
DEFAULT_LEVEL = 3
HARDWARE_LEVELS = {
    "none": "NONE",
    "ampere+": "AMPERE_PLUS",
    "same-compute-capability": "SAME_COMPUTE_CAPABILITY",
}
VERBOSITIES = {"layer-names-only": "LAYER_NAMES_ONLY", "detailed": "DETAILED", "none": "NONE"}
_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_POOL = re.compile(r"(?P<pool>\w+):(?P<size>\d+(\.\d+)?)(?P<unit>[BKMG]?)")


@dataclass(frozen=True)
class BuildFlags:
    """Settings of one build. All of them are part of an engine's identity."""

    builder_optimization_level: int = DEFAULT_LEVEL
    workspace: int | None = None
    """Most bytes of scratch memory a layer may use; None leaves it to TensorRT."""
    version_compatible: bool = False
    exclude_lean_runtime: bool = False
    hardware_compatibility_level: str = "none"
    refit: bool = False
    strip_weights: bool = False
    allow_weight_streaming: bool = False
    profiling_verbosity: str = "layer-names-only"

    def __post_init__(self) -> None:
        if self.builder_optimization_level not in LEVELS:
            raise SettingsError(
                f"--builder-optimization-level is {self.builder_optimization_level}, "
                f"but it must lie in {LEVELS.start}..{LEVELS.stop - 1}"
            )
        if self.workspace is not None and self.workspace < 1:
            raise SettingsError(f"--mem-pool-size gives a workspace of {self.workspace} bytes; it needs some")
        _require("hardware-compatibility-level", self.hardware_compatibility_level, HARDWARE_LEVELS)
        _require("profiling-verbosity", self.profiling_verbosity, VERBOSITIES)
        if self.exclude_lean_runtime and not self.version_compatible:
            raise SettingsError(
                "--exclude-lean-runtime is given, but only plans built with --version-compatible hold one"
            )

    def given(self) -> dict[str, Any]:
        """Flags that differ from the defaults, by their names on the command line."""
        return {
            f.name.replace("_", "-"): getattr(self, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        }

    def arguments(self) -> str:
        """The flags as they are typed, with a space before each."""
        words = []
        for name, value in self.given().items():
            if name == "workspace":
                words.append(f" --mem-pool-size workspace:{value}B")
            else:
                words.append(f" --{name}" if value is True else f" --{name} {value}")
        return "".join(words)

    def apply(self, package: TensorRT, config: Any) -> None:
        """Tell the builder."""
        api = package.api
        config.builder_optimization_level = self.builder_optimization_level
        config.profiling_verbosity = getattr(api.ProfilingVerbosity, VERBOSITIES[self.profiling_verbosity])
        if self.workspace is not None:
            config.set_memory_pool_limit(api.MemoryPoolType.WORKSPACE, self.workspace)
        if self.hardware_compatibility_level != "none":
            level = HARDWARE_LEVELS[self.hardware_compatibility_level]
            config.hardware_compatibility_level = getattr(api.HardwareCompatibilityLevel, level)
        for name, wanted in (
            ("VERSION_COMPATIBLE", self.version_compatible),
            ("EXCLUDE_LEAN_RUNTIME", self.exclude_lean_runtime),
            ("REFIT", self.refit),
            ("STRIP_PLAN", self.strip_weights),
            ("WEIGHT_STREAMING", self.allow_weight_streaming),
        ):
            if wanted:
                config.set_flag(package.flag(name))


def _require(name: str, value: str, known: dict[str, str]) -> None:
    if value not in known:
        raise SettingsError(f"--{name} is {value!r}, but it must be one of {', '.join(known)}")


def parse_memory_pool(text: str) -> int:
    """Bytes of ``workspace:SIZE``, where SIZE is in MiB or has one of the units B, K, M, G, as in trtexec."""
    match = _POOL.fullmatch(text)
    if match is None or match["pool"] != "workspace":
        raise SettingsError(
            f"--mem-pool-size is {text!r}, but it must look like workspace:2048 (MiB) or workspace:2G"
        )
    return int(float(match["size"]) * _UNITS[match["unit"] or "M"])
