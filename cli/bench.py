"""``vvs bench``: how fast every mode is on this machine, and what changed since the last time."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vvs.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

REGRESSED = 1


def bench(
    bundle: Annotated[Path | None, typer.Argument(help="Bundle to measure.")] = None,
    contenders: Annotated[
        list[str] | None,
        typer.Option(
            "--run", help="Mode and settings, such as 'vvs policy=uniform:3'; the first is the baseline."
        ),
    ] = None,
    batches: Annotated[
        list[int] | None, typer.Option("--batch", help="Pictures per call; repeat for more [1].")
    ] = None,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", help="Prompt; repeat for more [the bundle's examples].")
    ] = None,
    warm_up: Annotated[float, typer.Option(min=0, help="Unmeasured milliseconds per mode.")] = 200.0,
    duration: Annotated[float, typer.Option(min=0, help="Measured seconds per mode, at least.")] = 3.0,
    iterations: Annotated[int, typer.Option(min=1, help="Measured calls per mode, at least.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first picture.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the report.")] = Path("out/bench"),
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw PNG plots.")] = True,
    score: Annotated[Path | None, typer.Option(help="A score.json: plot quality against speed too.")] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Measure nothing; say what changed between two bench.json files."),
    ] = None,
    baselines: Annotated[
        Path | None,
        typer.Option(help="The bundle's recipe: measure eager PyTorch loops over its weights too."),
    ] = None,
    backend: Annotated[str, typer.Option(help="Backend that runs the graphs.")] = "onnxruntime",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of a graph [every CPU].")] = None,
) -> None:
    """Measure AR, EAGLE-2, LANTERN, LANTERN++ and VVS side by side in one run.

    With --compare, exits 1 if a mode became slower beyond the noise that was measured.
    """
    from rich.console import Console

    console = Console()
    if compare is not None:
        _compare(*compare, console)
        return
    if bundle is None:
        raise SettingsError("say which bundle to measure, such as `vvs bench engines/demo`")
    from rich.progress import Progress

    from vvs.benchmarks.baselines import eager_runners
    from vvs.benchmarks.bench import SWEEP, PipelineRunner, rows, verdicts, write_report
    from vvs.benchmarks.bench import bench as run
    from vvs.benchmarks.bench_plots import draw_plots
    from vvs.benchmarks.contender import Contender
    from vvs.benchmarks.report import print_table
    from vvs.benchmarks.timing import Runner, TimingSettings
    from vvs.runtime.pipeline import Pipeline

    settings = TimingSettings(warm_up, duration, iterations, seed)
    quality = _read_score(score)
    options = {} if threads is None else {"threads": threads}
    pipeline = Pipeline.from_bundle(bundle, backend, **options)
    runners: list[Runner] = [
        PipelineRunner(Contender.parse(text, pipeline), pipeline) for text in contenders or SWEEP
    ]
    if baselines is not None:
        found, notes = eager_runners(baselines, pipeline)
        runners += found
        for note in notes:
            console.print(note, soft_wrap=True)
    chosen = prompts or list(pipeline.bundle.manifest.examples)
    sizes = batches or [1]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        tasks = {size: progress.add_task(f"batch {size}", total=1.0) for size in sizes}
        report = run(
            runners,
            pipeline,
            chosen,
            sizes,
            settings,
            lambda size, share: progress.update(tasks[size], completed=share),
        )
    write_report(report, out)
    where = report["environment"]
    print_table(rows(report), f"{bundle.name} on {where['processor']}, {where['threads']} threads", console)
    for sentence in verdicts(report):
        console.print(sentence, soft_wrap=True)
    drawn = draw_plots(report, out, quality) if plots else []
    console.print(f"report: {out / 'bench.json'}  {out / 'bench.md'}", soft_wrap=True)
    if drawn:
        console.print(f"plots: {'  '.join(map(str, drawn))}", soft_wrap=True)


def _read_score(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        read: dict[str, Any] = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SettingsError(f"the scores {path} cannot be read: {error}") from error
    return read


def _compare(before: Path, after: Path, console: "Console") -> None:
    from vvs.benchmarks.bench_changes import change_rows, changes, differences, load_report
    from vvs.benchmarks.report import print_table

    reports = load_report(before), load_report(after)
    found = changes(*reports)
    print_table(change_rows(found), f"{before} and {after}", console)
    for sentence in differences(*reports):
        console.print(f"note: {sentence}", soft_wrap=True)
    if any(change.regressed for change in found):
        raise typer.Exit(REGRESSED)
