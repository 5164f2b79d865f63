"""``vvs tune``: the fastest settings of a bundle on this device, within a quality budget."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vvs.errors import SettingsError

if TYPE_CHECKING:
    from vvs.benchmarks.quality import Quality


def tune(
    bundle: Annotated[Path, typer.Argument(help="Bundle to tune; its manifest gets the choice.")],
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", help="Prompt; repeat for more [the bundle's examples].")
    ] = None,
    judge: Annotated[
        Path | None,
        typer.Option(help="Folder of the demo's classifier: quality is its score, in percent."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Command that takes a folder of PNG files and prints a number; more is better."),
    ] = None,
    pictures: Annotated[int, typer.Option(min=1, help="Pictures that are judged per setting.")] = 200,
    budget: Annotated[
        float, typer.Option(min=0, help="Most that quality may fall below AR's, in its own unit.")
    ] = 2.0,
    deltas: Annotated[list[float] | None, typer.Option("--delta", help="LANTERN bounds to try.")] = None,
    intervals: Annotated[list[int] | None, typer.Option("--interval", help="Skip intervals to try.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Pictures per setting for its acceptance.")] = 4,
    finalists: Annotated[
        int,
        typer.Option(min=1, help="Settings that are timed at once; more follow until one is good enough."),
    ] = 6,
    repeats: Annotated[int, typer.Option(min=1, help="Pictures per timed setting.")] = 8,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the report.")] = Path("out/tune"),
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw the curve.")] = True,
    write: Annotated[
        bool, typer.Option("--write/--dry-run", help="Write the choice into the bundle.")
    ] = True,
    backend: Annotated[str, typer.Option(help="Backend that runs the graphs.")] = "onnxruntime",
) -> None:
    """Choose tree, LANTERN bound and skip interval for the lowest latency on this device.

    Measures every kind of step for every tree the bundle has (others need an export), and the acceptance on
    sample prompts. Without --judge or --metric only settings that lose nothing are considered.
    """
    from rich.console import Console
    from rich.progress import Progress

    from vvs.benchmarks.report import print_table
    from vvs.benchmarks.step_times import step_times
    from vvs.benchmarks.tuning import TuningSettings, defaults_of
    from vvs.benchmarks.tuning import tune as run
    from vvs.benchmarks.tuning_report import cost_rows, draw_curve, finalist_rows, write_report
    from vvs.runtime.backends import open_engine, open_loop
    from vvs.runtime.bundle import Bundle
    from vvs.runtime.pipeline import Pipeline
    from vvs.runtime.prompts import encode
    from vvs.runtime.tuned import device_name, write_defaults

    plain = TuningSettings()
    settings = TuningSettings(
        tuple(deltas or plain.deltas),
        tuple(intervals or plain.intervals),
        budget,
        samples,
        finalists,
        repeats,
    )
    console, device = Console(), device_name(backend)
    opened = Bundle.open(bundle)
    shown = list(prompts or opened.manifest.examples)
    if not shown:
        raise SettingsError("the bundle has no example prompts; give some with --prompt")
    quality = _quality(judge, metric, shown, pictures)
    engine, conditioning = open_engine(opened, backend), encode(opened, shown[:1])
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring steps", total=1.0)
        costs = {tree: step_times(engine, conditioning, tree) for tree in opened.manifest.trees}
        progress.update(task, description="trying settings")
        pipeline = Pipeline(opened, open_loop(opened, backend))
        tuning = run(
            pipeline, costs, shown, settings, quality, lambda share: progress.update(task, completed=share)
        )
    print_table(cost_rows(tuning), f"Steps of one request on {device}", console)
    print_table(finalist_rows(tuning), "The fastest settings, timed against AR in turns", console)
    if quality is None:
        console.print("only lossless settings were tried; --judge or --metric lets others in", soft_wrap=True)
    else:
        console.print(f"quality of AR: {tuning.baseline_quality:.2f}; budget {budget:g} below it")
    console.print(f"chosen: {tuning.chosen.label}, among the trees {', '.join(costs)}", soft_wrap=True)
    written = [write_report(tuning, device, out)]
    if plots:
        written.append(draw_curve(tuning, out / "tuning.png"))
    console.print(f"report: {'  '.join(map(str, written))}", soft_wrap=True)
    if write:
        write_defaults(opened, device, defaults_of(tuning.chosen))
        console.print(f"{bundle} now recommends this on {device}", soft_wrap=True)


def _quality(judge: Path | None, metric: str | None, prompts: list[str], pictures: int) -> "Quality | None":
    from vvs.benchmarks.quality import ClassifierScore, CommandMetric

    if judge is not None and metric is not None:
        raise SettingsError(
            "--judge and --metric are both given, but quality is one number; give one of them"
        )
    if judge is not None:
        return ClassifierScore(judge, pictures)
    return None if metric is None else CommandMetric(metric, prompts, pictures)
