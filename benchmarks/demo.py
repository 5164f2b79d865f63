"""``python -m vvs.benchmarks.demo``: AR, EAGLE, LANTERN and VVS side by side, as a picture and a table."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from vvs.benchmarks.comparison import Measured, compare
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.environment import environment
from vvs.benchmarks.report import markdown, print_table, write_json, write_text
from vvs.errors import SettingsError, VvsError
from vvs.runtime.images import contact_sheet, save_sheet
from vvs.runtime.pipeline import Pipeline

DEFAULT_CONTENDERS = ("ar", "eagle", "lantern", "vvs")


def rows(results: list[Measured]) -> list[dict[str, str]]:
    """The table; the first contender is what the others are compared to."""
    table = []
    for result in results:
        figures = result.figures(results[0])
        table.append(
            {
                "mode": result.contender.label,
                "forward passes": f"{figures['forward_passes']:.1f}",
                "step compression": f"{figures['step_compression']:.2f}",
                "accepted (verify)": f"{figures['accepted_verify']:.2f}",
                "accepted (skip)": f"{figures['accepted_skip']:.2f}",
                "ms per image": f"{figures['milliseconds']:.0f}",
                f"speed-up over {results[0].contender.label}": f"{figures['ratio']:.2f}x",
                "time outside engines": f"{100 * figures['outside_engines']['all']:.1f}%",
            }
        )
    return table


def main(
    bundle: Annotated[Path, typer.Argument(help="Bundle to draw with.")] = Path("engines/demo"),
    out: Annotated[Path, typer.Option(help="Folder for grid.png, table.md and results.json.")] = Path(
        "out/demo"
    ),
    prompts: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="Prompt to draw; repeat for more. Default: the bundle's."),
    ] = None,
    contenders: Annotated[
        list[str] | None,
        typer.Option("--run", help="Mode and settings, such as 'vvs policy=uniform:3'; repeat for more."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Pictures per prompt; the first of each is shown.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first picture.")] = 0,
) -> None:
    """Draw the same prompts and seeds in every mode, one picture at a time, and compare."""
    console = Console()
    try:
        pipeline = Pipeline.from_bundle(bundle)
        shown = list(prompts or pipeline.bundle.manifest.examples)
        if not shown:
            raise SettingsError("the bundle has no example prompts; give some with --prompt")
        chosen = [Contender.parse(text, pipeline) for text in contenders or DEFAULT_CONTENDERS]
        jobs = [(prompt, seed + i) for i in range(repeats) for prompt in shown]
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("drawing", total=len(chosen) * (len(jobs) + 1))
            results = compare(
                pipeline, chosen, [p for p, _ in jobs], [s for _, s in jobs], lambda: progress.advance(task)
            )
        _report(results, shown, bundle, out, console)
    except VvsError as error:
        console.print(f"[red]error:[/red] {error}")
        raise typer.Exit(1) from error


def _report(results: list[Measured], shown: list[str], bundle: Path, out: Path, console: Console) -> None:
    table = rows(results)
    out.mkdir(parents=True, exist_ok=True)
    cells = [[result.images[i].pixels for result in results] for i in range(len(shown))]
    save_sheet(out / "grid.png", contact_sheet(cells, shown, [r.contender.label for r in results]))
    where = environment()
    write_text(out / "table.md", markdown(table))
    write_json(
        out / "results.json",
        {
            "schema": 1,
            "bundle": bundle.name,
            "environment": where,
            "pictures": len(results[0].images),
            "contenders": {r.contender.label: r.figures(results[0]) for r in results},
        },
    )
    print_table(table, f"{bundle.name} on {where['processor']}, {where['threads']} threads, batch 1", console)
    console.print(f"pictures: {out / 'grid.png'}   table: {out / 'table.md'}   data: {out / 'results.json'}")


if __name__ == "__main__":
    typer.run(main)
