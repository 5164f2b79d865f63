"""BuildSettings: everything one call of the builder is asked for."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from vvs.errors import BackendError, SettingsError
from vvs.export.tensorrt.flags import BuildFlags
from vvs.export.tensorrt.profiles import GivenShapes, RequestRange
from vvs.manifest import Manifest
from vvs.runtime.cuda_driver import Driver
from vvs.runtime.engine_file import build_command
from vvs.runtime.tensorrt_package import TensorRT

_ARCH = re.compile(r"sm_\d{2,3}")


@dataclass(frozen=True)
class BuildSettings:
    """Which engines to build, and how."""

    backend: str
    arches: tuple[str, ...] = ()
    """Such as ``sm_89``; empty is the GPU at hand."""
    graphs: tuple[str, ...] = ()
    """Empty is all of them."""
    requests: RequestRange | None = None
    """None is one request up to the bundle's most."""
    shapes: GivenShapes | None = None
    flags: BuildFlags = field(default_factory=BuildFlags)
    timing_cache: Path | None = None
    layer_info: bool = False
    """Whether to write what the engine consists of beside it."""
    force: bool = False

    def __post_init__(self) -> None:
        for arch in self.arches:
            if not _ARCH.fullmatch(arch):
                raise SettingsError(f"--arch has {arch!r}, but an architecture looks like sm_89")
        if len(set(self.arches)) != len(self.arches):
            raise SettingsError(f"--arch is {','.join(self.arches)}, which names an architecture twice")
        if self.shapes is not None and len(self.graphs) != 1:
            raise SettingsError(
                f"shapes are given for {len(self.graphs) or 'all'} graphs, but they belong to one; "
                "name it with --graph"
            )

    def architectures(self, package: TensorRT, driver: Driver | None) -> tuple[str, ...]:
        """The architectures to build for, as far as the package can.

        Raises:
            SettingsError: an architecture that the package does not build for.
            BackendError: there is no GPU whose architecture could be taken.

        """
        here = tuple(gpu.arch for gpu in driver.gpus) if driver else ()
        if package.names_architectures:
            known = package.architectures
            for arch in self.arches:
                if arch not in known:
                    raise SettingsError(
                        f"--arch has {arch}, but {package.title} builds for {', '.join(known)}"
                    )
        elif here and self.arches and self.arches != here[:1]:
            raise SettingsError(
                f"--arch is {','.join(self.arches)}, but {package.title} builds for the GPU at hand, "
                f"{here[0]}"
            )
        if not here and (not self.arches or not package.names_architectures):
            way = (
                "name one with --arch"
                if package.names_architectures
                else "build on the machine that runs the engine, or ahead of time with --backend tensorrt-rtx"
            )
            raise BackendError(
                f"{package.title} takes the architecture of the GPU at hand, but this machine has "
                f"{'no NVIDIA driver' if driver is None else 'a driver and no GPU'}; {way}"
            )
        return self.arches or here[:1]

    def chosen(self, manifest: Manifest) -> tuple[str, ...]:
        """The graphs to build, in the manifest's order."""
        for graph in self.graphs:
            if graph not in manifest.graphs:
                raise SettingsError(f"--graph is {graph!r}, but the bundle has {', '.join(manifest.graphs)}")
        return tuple(graph for graph in manifest.graphs if graph in self.graphs or not self.graphs)

    def requests_of(self, manifest: Manifest) -> RequestRange:
        """The batch range."""
        return self.requests or RequestRange(1, 1, manifest.max_requests)

    def command(self, bundle: Path, arch: str) -> str:
        """What builds the same again for one architecture."""
        graphs = "".join(f" --graph {graph}" for graph in self.graphs)
        batch = f" --batch {self.requests}" if self.requests else ""
        shapes = self.shapes.arguments() if self.shapes else ""
        return f"{build_command(bundle, self.backend, arch)}{batch}{self.flags.arguments()}{shapes}{graphs}"
