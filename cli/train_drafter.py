"""``vvs train-drafter``: an EAGLE drafter for a target of one's own. Needs PyTorch."""

from pathlib import Path
from typing import Annotated

import typer

from vvs.cli.recipes import find_recipe, require_export_packages
from vvs.errors import SettingsError


def train_drafter(
    target: Annotated[
        str,
        typer.Argument(
            help="A bundle, the target's checkpoint (a file, or a folder of weights), or a recipe (its path, "
            "or the name of one in engines/)."
        ),
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="Folder of pictures or .npy token files with prompts (metadata.jsonl, .txt files or class "
            "folders), one .npy file with a .txt file of prompts beside it, or a file of arrays (.npz, "
            ".safetensors: `tokens` [n, M] and the prompt encoder's inputs)."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the drafter; a run in it goes on.")],
    weights: Annotated[
        str | None, typer.Option(help="Folder of the target's weights [what the recipe or bundle says].")
    ] = None,
    grid: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens a side of a bare checkpoint's images [what a file of arrays shows]."
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimisation steps.")] = 2000,
    batch: Annotated[
        int, typer.Option(min=1, help="Pictures per step, each with and without its prompt if guided.")
    ] = 8,
    learning_rate: Annotated[float, typer.Option(min=0, help="Peak learning rate.")] = 1e-3,
    predicted: Annotated[
        float, typer.Option(min=0, max=1, help="Share of features replaced by the drafter's own predictions.")
    ] = 0.3,
    stale: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Share of features replaced by older ones, as skipped steps leave them."
        ),
    ] = 0.1,
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Start from the drafter that is there, not from a fresh one.")
    ] = False,
    layers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Layers of the drafter; more than --go-on finds are added [1, or those it finds]."
        ),
    ] = None,
    held_out: Annotated[int, typer.Option(min=1, help="Examples that are judged, not trained on.")] = 32,
    decode: Annotated[
        int, typer.Option(min=0, help="Held-out prompts to decode for accepted lengths; 0: none.")
    ] = 4,
    cfg: Annotated[
        float, typer.Option(min=0, help="Guidance scale that it is trained for and decoded with.")
    ] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 leaves the choice to PyTorch.")] = 0,
) -> None:
    """Train an EAGLE drafter on a target's own features, and report its accepted length on held-out prompts.

    The folder that comes out has the published layout: name it in a recipe, and `vvs export` takes it.
    """
    require_export_packages()
    import torch
    from rich.console import Console

    from vvs.export.resources import require_disk
    from vvs.export.training.drafter_data import disk_of_tokens, read_examples
    from vvs.export.training.drafter_stage import FeatureMix
    from vvs.export.training.drafter_target import load_target
    from vvs.export.training.own_drafter import DrafterJob, disk_of_training, train_own_drafter
    from vvs.export.training.trainer import TrainSettings

    if out.exists() and not out.is_dir():
        raise SettingsError(f"--out is {out}, which is a file, but a drafter is a folder")
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    console = Console(stderr=True)
    job = DrafterJob(
        TrainSettings(steps=steps, batch=batch, learning_rate=learning_rate, seed=seed),
        FeatureMix(predicted=predicted, stale=stale),
        go_on=go_on,
        decoded_prompts=decode,
        cfg_scale=cfg,
        held_out=held_out,
        layers=layers,
    )
    place = find_recipe(target)
    models = load_target(place, data, out, weights=weights, grid=grid, go_on=go_on)
    needed = disk_of_training(models, job, out) + disk_of_tokens(models, data, out)
    require_disk("training the drafter", needed, out)
    examples = read_examples(models, data, out, console)
    report = train_own_drafter(models, examples, job, out, console)
    losses = "  ".join(f"{name} {value:.4g}" for name, value in report["losses"].items())
    typer.echo(f"held out: {losses}")
    for mode, figures in report["decoding"].items():
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in figures.items())
        typer.echo(f"{mode}: {shown}")
    typer.echo(f"drafter: {out}")
