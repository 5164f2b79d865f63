"""``vvs train-drafter``: an EAGLE drafter for a target of one's own. Needs PyTorch."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vvs.cli.recipes import find_recipe, require_export_packages
from vvs.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from vvs.export.model_set import ModelSet
    from vvs.export.training.token_examples import TokenExamples

TOKEN_FILES = (".npz", ".safetensors")
KEPT_TOKENS = "tokens.npz"


def train_drafter(
    recipe: Annotated[
        str, typer.Argument(help="Path of the target's recipe, or the name of one in engines/.")
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="Folder of pictures with prompts (metadata.jsonl, .txt files or class folders), "
            "or a token file (.npz, .safetensors: `tokens` [n, M] and the prompt encoder's inputs)."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the drafter; a run in it goes on.")],
    weights: Annotated[
        str | None, typer.Option(help="Folder of the target's weights [what the recipe says].")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimisation steps.")] = 2000,
    batch: Annotated[int, typer.Option(min=1, help="Pictures per step.")] = 8,
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
        bool, typer.Option("--go-on", help="Start from the recipe's drafter, not from a fresh one.")
    ] = False,
    held_out: Annotated[int, typer.Option(min=1, help="Examples that are judged, not trained on.")] = 32,
    decode: Annotated[
        int, typer.Option(min=0, help="Held-out prompts to decode for accepted lengths; 0: none.")
    ] = 4,
    cfg: Annotated[float, typer.Option(min=0, help="Guidance scale of that decoding.")] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 leaves the choice to PyTorch.")] = 0,
) -> None:
    """Train an EAGLE drafter on a target's own features, and report its accepted length on held-out prompts.

    The folder that comes out has the published layout: name it in a recipe, and `vvs export` takes it.
    """
    require_export_packages()
    import torch
    from rich.console import Console

    from vvs.export.training.drafter_stage import FeatureMix
    from vvs.export.training.own_drafter import DrafterJob, train_own_drafter
    from vvs.export.training.trainer import TrainSettings

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
    )
    models = _models(find_recipe(recipe), weights, out, go_on)
    examples, judged = _examples(models, data, out, console).split(held_out, seed)
    report = train_own_drafter(models, examples, judged, job, out, console)
    losses = "  ".join(f"{name} {value:.4g}" for name, value in report["losses"].items())
    typer.echo(f"held out: {losses}")
    for mode, figures in report["decoding"].items():
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in figures.items())
        typer.echo(f"{mode}: {shown}")
    typer.echo(f"drafter: {out}")


def _models(path: Path, weights: str | None, out: Path, go_on: bool) -> "ModelSet":
    """The recipe's models. Only going on needs a drafter; the recipe may name the one that is to be made."""
    from vvs.export.recipe import RANDOM, load_recipe
    from vvs.export.training.own_drafter import WEIGHTS_FILE

    recipe = load_recipe(path)
    named = recipe.folder(weights) / recipe.weights.drafter
    unfinished = named.resolve() == out.resolve() and not (out / WEIGHTS_FILE).exists()
    if not go_on and (unfinished or not named.exists()):
        recipe = replace(recipe, weights=replace(recipe.weights, drafter=RANDOM))
    models = recipe.models(weights)
    if go_on and "drafter" in models.random_parts:
        raise SettingsError(
            f"--go-on starts from the recipe's drafter, but there is none in {recipe.folder(weights)}; "
            "name one in the recipe, or leave --go-on out"
        )
    return models


def _examples(models: "ModelSet", data: Path, out: Path, console: "Console") -> "TokenExamples":
    """Read a token file, or encode a folder of pictures; its tokens are kept in ``out`` for the next run."""
    from vvs.export.graphs import EncodePromptGraph
    from vvs.export.training.pictures import find_pictures, tokenise
    from vvs.export.training.token_examples import TokenExamples, load_examples
    from vvs.runtime.prompts import Prompted, encode_for

    inputs = EncodePromptGraph(models.target, models.text_encoder).inputs
    if data.suffix in TOKEN_FILES:
        return load_examples(data, inputs, models.geometry)
    kept = out / KEPT_TOKENS
    if kept.is_file():
        console.print(f"taking the tokens of {kept}; remove it to encode the pictures again")
        return load_examples(kept, inputs, models.geometry)
    pictures = find_pictures(data)
    if models.conditioning.kind == "caption":
        raise SettingsError(
            "this recipe has no text encoder to turn captions into states; add one, or give a token file"
        )
    prompted = Prompted(models.conditioning, models.geometry.prompt_length, models.read_tokenizer)
    conditioning = encode_for(prompted, [picture.prompt for picture in pictures])
    tokens = tokenise(models.vq, pictures, models.geometry.image_size, console)
    examples = TokenExamples(tokens, conditioning, inputs, models.geometry)
    examples.save(kept)
    return examples
