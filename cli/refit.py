"""``vvs refit``: a bundle's new weights into engines that were built with ``--refit``. Needs the GPU."""

from pathlib import Path
from typing import Annotated

import typer


def refit(
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle, exported again from other weights.")],
    backend: Annotated[str, typer.Option(help="tensorrt or tensorrt-rtx.")] = "tensorrt",
    graph: Annotated[list[str] | None, typer.Option(help="Refit this graph only; repeatable [all].")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing.")] = False,
) -> None:
    """Put a bundle's weights into the engines beside it, without a rebuild.

    The engines must have been built with --refit (or --strip-weights), by the TensorRT that is installed, for
    the GPU at hand: TensorRT opens an engine to refit it, so that this cannot be done ahead of time, not even
    with tensorrt-rtx, which builds refittable engines only where there is a GPU driver.
    """
    from rich.console import Console

    from vvs.export.tensorrt.refitter import refit_engines
    from vvs.runtime.bundle import Bundle

    refit_engines(Bundle.open(bundle), backend, tuple(graph or ()), None if quiet else Console(stderr=True))
