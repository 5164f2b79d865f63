"""``vvs export``: from a recipe to a bundle. Needs PyTorch."""

from pathlib import Path
from typing import Annotated

import typer

from vvs.cli.recipes import find_recipe, require_export_packages
from vvs.precision import PRECISIONS


def export(
    recipe: Annotated[str, typer.Argument(help="Path of a recipe, or the name of one in engines/.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the bundle [beside the recipe].")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Folder of the weights, or `random` [what the recipe says].")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help=f"Of all but the image decoder: {', '.join(PRECISIONS)} [the recipe's]."),
    ] = None,
    keep_fp32: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTS",
            help="What computes in fp32 all the same: numbers of target layers such as 3 or 5-7, head, "
            "drafter, text-encoder, or auto: what overflows on the recipe's examples [the recipe's].",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is found and what would be built, and stop.")
    ] = False,
    ignore_memory: Annotated[
        bool, typer.Option("--ignore-memory", help="Export even if memory looks too small.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Export even if nothing has changed.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table of errors.")] = False,
) -> None:
    """Export the models of a recipe as a bundle, checking every graph against PyTorch."""
    require_export_packages()
    from rich.console import Console

    from vvs.export.bundle import export_bundle
    from vvs.export.origin import origin_of
    from vvs.export.plan import memory, random_note, show_plan
    from vvs.export.recipe import load_recipe
    from vvs.export.resources import require_memory
    from vvs.runtime.prompts import Prompted, encode_each

    path = find_recipe(recipe)
    read = load_recipe(path)
    place = out or path.with_suffix("")
    numerics = read.numerics(precision, keep_fp32 or ())
    survey = read.survey(weights)
    survey.require_parts(numerics)
    if dry_run:
        show_plan(Console(), survey, numerics.name, place)
        return
    if not ignore_memory:
        require_memory(memory(survey, numerics.name))
    console = None if quiet else Console(stderr=True)
    if survey.random_parts and console is not None:
        console.print(random_note(survey.random_parts), soft_wrap=True)
    models = survey.models(numerics)
    prompted = Prompted(models.conditioning, models.geometry.prompt_length, models.read_tokenizer)
    prompts = encode_each(prompted, models.examples)
    origin = origin_of(survey, weights, place)
    export_bundle(
        models, place, numerics=numerics, prompts=prompts, origin=origin, console=console, force=force
    )
