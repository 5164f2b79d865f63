"""``vvs build``: a bundle's graphs to TensorRT engines. Needs no PyTorch, and with tensorrt-rtx no GPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vvs.export.tensorrt.profiles import GivenShapes


def build(
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    backend: Annotated[
        str,
        typer.Option(help="tensorrt (for the GPU at hand) or tensorrt-rtx (ahead of time, no GPU needed)."),
    ] = "tensorrt-rtx",
    arch: Annotated[
        str | None, typer.Option(help="Architectures, such as sm_86,sm_89,sm_120 [the GPU at hand].")
    ] = None,
    graph: Annotated[list[str] | None, typer.Option(help="Build this graph only; repeatable [all].")] = None,
    batch: Annotated[
        str | None, typer.Option(help="Requests at once, MAX or MIN:OPT:MAX [1:1:the bundle's most].")
    ] = None,
    min_shapes: Annotated[
        str | None,
        typer.Option(help="Least shapes of one --graph in place of its profiles: name:2x59x64,..."),
    ] = None,
    opt_shapes: Annotated[
        str | None, typer.Option(help="Shapes to tune for; needed with the others.")
    ] = None,
    max_shapes: Annotated[str | None, typer.Option(help="Greatest shapes.")] = None,
    builder_optimization_level: Annotated[
        int, typer.Option(help="0 builds fastest, 5 searches longest.")
    ] = 3,
    mem_pool_size: Annotated[
        str | None, typer.Option(help="Scratch memory, such as workspace:2048 (MiB) or workspace:2G.")
    ] = None,
    timing_cache_file: Annotated[
        Path | None, typer.Option(help="Keep kernel timings; version and architecture join the name.")
    ] = None,
    hardware_compatibility_level: Annotated[
        str, typer.Option(help="none, ampere+ or same-compute-capability.")
    ] = "none",
    version_compatible: Annotated[
        bool, typer.Option("--version-compatible", help="Let later versions of TensorRT open the engines.")
    ] = False,
    exclude_lean_runtime: Annotated[
        bool, typer.Option("--exclude-lean-runtime", help="Leave the lean runtime out of such engines.")
    ] = False,
    refit: Annotated[
        bool, typer.Option("--refit", help="Let new weights be put in without a rebuild.")
    ] = False,
    strip_weights: Annotated[
        bool, typer.Option("--strip-weights", help="Leave weights out that can be put in later.")
    ] = False,
    allow_weight_streaming: Annotated[
        bool,
        typer.Option(
            "--allow-weight-streaming", help="Let weights stay in host memory; rules out CUDA graphs."
        ),
    ] = False,
    profiling_verbosity: Annotated[
        str, typer.Option(help="What engines tell of their layers: layer-names-only, detailed or none.")
    ] = "layer-names-only",
    export_layer_info: Annotated[
        bool, typer.Option("--export-layer-info", help="Write the layers as JSON beside each engine.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Check the hash of every file of the bundle first.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Build even if nothing has changed.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No memory plan, no progress.")] = False,
) -> None:
    """Build a bundle's graphs into TensorRT engines beside them; what is up to date is left alone."""
    from rich.console import Console

    from vvs.export.tensorrt.builder import build_engines
    from vvs.export.tensorrt.flags import BuildFlags, parse_memory_pool
    from vvs.export.tensorrt.profiles import RequestRange
    from vvs.export.tensorrt.settings import BuildSettings
    from vvs.runtime.bundle import Bundle

    settings = BuildSettings(
        backend=backend,
        arches=tuple(part.strip() for part in arch.split(",")) if arch is not None else (),
        graphs=tuple(graph or ()),
        requests=None if batch is None else RequestRange.parse(batch),
        shapes=_given(min_shapes, opt_shapes, max_shapes),
        flags=BuildFlags(
            builder_optimization_level=builder_optimization_level,
            workspace=None if mem_pool_size is None else parse_memory_pool(mem_pool_size),
            version_compatible=version_compatible,
            exclude_lean_runtime=exclude_lean_runtime,
            hardware_compatibility_level=hardware_compatibility_level,
            refit=refit,
            strip_weights=strip_weights,
            allow_weight_streaming=allow_weight_streaming,
            profiling_verbosity=profiling_verbosity,
        ),
        timing_cache=timing_cache_file,
        layer_info=export_layer_info,
        force=force,
    )
    build_engines(Bundle.open(bundle, verify=verify), settings, None if quiet else Console(stderr=True))


def _given(least: str | None, best: str | None, greatest: str | None) -> "GivenShapes | None":
    """The shapes of the command line; None if there are none."""
    from vvs.export.tensorrt.profiles import GivenShapes, parse_shapes

    flags = {"min-shapes": least, "opt-shapes": best, "max-shapes": greatest}
    if not any(flags.values()):
        return None
    return GivenShapes(*(parse_shapes(flag, text) if text else {} for flag, text in flags.items()))
