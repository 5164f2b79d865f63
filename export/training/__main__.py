"""``python -m vvs.export.training``: train the demo model, or single stages of it."""

import dataclasses
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from vvs.errors import VvsError
from vvs.export.training.demo import SETTINGS, DemoTraining

STAGES = ("vq", "target", "drafter", "classifier")


def main(
    stages: Annotated[
        list[str] | None, typer.Argument(help=f"Stages to train, of {', '.join(STAGES)}; all when left out.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder for resumable training states.")] = Path("runs/demo"),
    weights: Annotated[Path, typer.Option(help="Folder for the finished weights.")] = Path(
        "engines/weights/demo"
    ),
    threads: Annotated[int, typer.Option(help="CPU threads; 0 leaves the choice to PyTorch.")] = 0,
    compile_layers: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Fuse the target's layers with torch.compile.")
    ] = True,
    from_weights: Annotated[
        bool,
        typer.Option(
            "--from-weights",
            help="Let target and drafter go on from the finished weights where no training state is kept.",
        ),
    ] = False,
) -> None:
    """Train the demo model from Fashion-MNIST; an interrupted run goes on where it stopped."""
    names = stages or list(STAGES)
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise typer.BadParameter(f"unknown stage {unknown[0]!r}; the stages are {', '.join(STAGES)}")
    if threads:
        torch.set_num_threads(threads)
    console = Console(width=None if Console().is_terminal else 200)
    settings = dataclasses.replace(SETTINGS, compile=compile_layers, from_weights=from_weights)
    try:
        DemoTraining(settings, runs, weights, console).run(names)
    except VvsError as error:
        console.print(f"[red]error:[/red] {error}")
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        console.print("stopped; the same command goes on from the last saved state")
        raise typer.Exit(130) from error


if __name__ == "__main__":
    typer.run(main)
