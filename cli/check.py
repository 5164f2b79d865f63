"""``vvs check``: greedy decoding must be the same with and without drafting, and on every backend."""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vvs.cli.output import print_table
from vvs.errors import SettingsError

if TYPE_CHECKING:
    from vvs.benchmarks.agreement import Comparison

DIFFERENT = 1


def check(
    bundle: Annotated[Path, typer.Argument(help="Bundle to check.")],
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", help="Prompt; repeat for more [the bundle's examples].")
    ] = None,
    backends: Annotated[
        list[str] | None, typer.Option("--backend", help="Backend; repeat to compare [onnxruntime].")
    ] = None,
    trees: Annotated[
        list[str] | None, typer.Option("--tree", help="Draft tree; repeat for more [all of the bundle].")
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="The bundle's recipe: compare with eager PyTorch too, which needs its weights."),
    ] = None,
    cfg: Annotated[float, typer.Option(min=0, help="Guidance scale.")] = 2.0,
    as_json: Annotated[Path | None, typer.Option("--json", help="File for the results, or - .")] = None,
) -> None:
    """Compare greedy output with and without drafting, and between backends.

    Says where two runs first differ, by how much the target preferred one token, and whether that is a tie
    (as ONNX Runtime computes the logits).
    Exits 1 if something differs that is no tie.
    """
    from vvs.benchmarks.agreement import compare_greedy
    from vvs.benchmarks.baselines import eager_engine
    from vvs.decoding import Decoder
    from vvs.runtime.backends import open_engine, open_loop
    from vvs.runtime.bundle import Bundle

    opened = Bundle.open(bundle)
    names = backends or ["onnxruntime"]
    loops = {name: open_loop(opened, name) for name in names}
    if recipe is not None:
        loops["eager PyTorch"] = Decoder(eager_engine(recipe, opened), opened.codebook)
    shown = list(prompts or opened.manifest.examples)
    if not shown:
        raise SettingsError("the bundle has no example prompts; give some with --prompt")
    results = compare_greedy(
        opened, loops, cache(lambda: open_engine(opened)), shown, trees or list(opened.manifest.trees), cfg
    )
    _print(results)
    if as_json is not None:
        _write(as_json, [result.to_dict() for result in results])
    if any(result.wrong for result in results):
        raise typer.Exit(DIFFERENT)


def _print(results: "list[Comparison]") -> None:
    rows = [(r.ours, r.theirs, f"{r.equal} of {r.pictures}", r.sentence) for r in results]
    print_table("Greedy decoding", ("run", "compared with", "same pictures", "first difference"), rows)


def _write(place: Path, results: list[dict[str, Any]]) -> None:
    from vvs.benchmarks.report import write_json

    if str(place) == "-":
        typer.echo(json.dumps(results, indent=2))
    else:
        write_json(place, results)
