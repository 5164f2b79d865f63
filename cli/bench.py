"""``vvs bench``: how fast every mode is on this machine, and what changed since the last time."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vvs.cli.recipes import find_recipe
from vvs.errors import BackendError, SettingsError
from vvs.precision import PRECISIONS

if TYPE_CHECKING:
    from rich.console import Console

    from vvs.runtime.bundle import Bundle

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
    score: Annotated[
        Path | None, typer.Option(help="An eval.json of vvs eval: plot quality against speed too.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Measure nothing; say what changed between two bench.json files."),
    ] = None,
    baselines: Annotated[
        Path | None,
        typer.Option(help="The bundle's recipe: measure eager PyTorch loops over its weights too."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(help="Measure nothing; compute the floor of a recipe's steps on --device."),
    ] = None,
    device: Annotated[str, typer.Option(help="Data sheet of --plan: h200, a100, l40s or rtx4090.")] = "h200",
    floor: Annotated[
        bool,
        typer.Option(
            "--floor/--no-floor", help="Probe this machine, and say how far above its floor steps are."
        ),
    ] = True,
    backend: Annotated[str, typer.Option(help="Backend that runs the graphs.")] = "onnxruntime",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of a graph [every CPU].")] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Afterwards draw a picture in every mode, and write a trace for Perfetto."),
    ] = None,
    nvtx: Annotated[
        bool, typer.Option("--nvtx", help="Mark every call and phase for Nsight Systems.")
    ] = False,
) -> None:
    """Measure AR, EAGLE-2, LANTERN, LANTERN++ and VVS side by side in one run.

    With --compare, exits 1 if a mode became slower beyond the noise that was measured.
    """
    from rich.console import Console

    console = Console()
    if compare is not None:
        _compare(*compare, console)
        return
    if plan is not None:
        _plan(plan, device, console)
        return
    if bundle is None:
        raise SettingsError("say which bundle to measure, such as `vvs bench engines/demo`")
    from rich.progress import Progress

    from vvs.benchmarks.baselines import eager_runners
    from vvs.benchmarks.bench import SWEEP, PipelineRunner, Setup, trace_one
    from vvs.benchmarks.bench import bench as run
    from vvs.benchmarks.bench_plots import draw_plots
    from vvs.benchmarks.bench_report import sentences, tables, write_report
    from vvs.benchmarks.contender import Contender
    from vvs.benchmarks.report import print_table
    from vvs.benchmarks.timing import Runner, TimingSettings
    from vvs.runtime.pipeline import Pipeline
    from vvs.runtime.tracing import traced

    settings = TimingSettings(warm_up, duration, iterations, seed)
    quality = _read_score(score)
    options: dict[str, Any] = {} if threads is None else {"threads": threads}
    pipeline = Pipeline.from_bundle(bundle, backend, **options)
    runners: list[Runner] = [
        PipelineRunner(Contender.parse(text, pipeline), pipeline) for text in contenders or SWEEP
    ]
    notes: list[str] = []
    if baselines is not None:
        found, notes = eager_runners(baselines, pipeline, threads)
        runners += found
    chosen = prompts or list(pipeline.bundle.manifest.examples)
    sizes = batches or [1]
    with Progress(console=Console(stderr=True), transient=True) as progress, traced(None, nvtx=nvtx):
        tasks = {size: progress.add_task(f"batch {size}", total=1.0) for size in sizes}
        report = run(
            runners,
            pipeline,
            chosen,
            sizes,
            settings,
            Setup(backend, threads, tuple(notes)),
            lambda size, share: progress.update(tasks[size], completed=share),
        )
    floors = _floor(pipeline.bundle, backend, threads, chosen, console) if floor else None
    write_report(report | {"floor": floors}, out)
    where = report["environment"]
    console.print(f"{bundle.name} on {where['processor']}, {where['threads']} threads", soft_wrap=True)
    for title, rows in tables(report):
        print_table(rows, title, console)
    for sentence in sentences(report):
        console.print(sentence, soft_wrap=True)
    drawn = draw_plots(report, out, quality) if plots else []
    console.print(f"report: {out / 'bench.json'}  {out / 'bench.md'}", soft_wrap=True)
    if drawn:
        console.print(f"plots: {'  '.join(map(str, drawn))}", soft_wrap=True)
    if trace is not None:
        trace_one(runners, chosen[0], seed, trace)
        console.print(f"trace: {trace}", soft_wrap=True)


def _plan(recipe: str, device: str, console: "Console") -> None:
    from vvs.benchmarks.devices import data_sheet
    from vvs.benchmarks.floor import plan_lines, recipe_model
    from vvs.benchmarks.report import print_table
    from vvs.benchmarks.roofline import floor_rows, step_costs

    sheet, path = data_sheet(device), find_recipe(recipe)
    model = recipe_model(path)
    for tree in model.trees:
        title = f"{path.stem} in {model.precision}, tree {tree}, one request, on {sheet.name} (computed)"
        print_table(floor_rows(step_costs(model, tree), sheet, model.precision), title, console)
        for line in plan_lines(model, sheet, tree):
            console.print(line, soft_wrap=True)


def _floor(
    bundle: "Bundle", backend: str, threads: int | None, prompts: list[str], console: "Console"
) -> dict[str, Any] | None:
    """Print how far the default tree's steps are above this machine's floor; None if that cannot be told."""
    from vvs.benchmarks.devices import probe
    from vvs.benchmarks.environment import environment
    from vvs.benchmarks.floor import floor_data, measured_floor
    from vvs.benchmarks.report import print_table
    from vvs.benchmarks.roofline import floor_rows
    from vvs.runtime.backends import open_engine

    machine = probe(str(environment()["processor"]))
    precision = bundle.manifest.precision
    if PRECISIONS[precision].compute not in machine.rates:
        console.print(f"no floor: the probe measures fp32 products, and the bundle is in {precision}")
        return None
    options: dict[str, Any] = {} if threads is None else {"threads": threads}
    try:
        engine = open_engine(bundle, backend, options)
    except BackendError as error:
        console.print(f"no floor: {error}", soft_wrap=True)
        return None
    _, costs, seconds = measured_floor(bundle, engine, prompts[0])
    title = f"Steps of one request, tree {bundle.manifest.default_tree}, above the floor of {machine.name}"
    print_table(floor_rows(costs, machine, precision, seconds), title, console)
    console.print(
        f"{machine.name}: {machine.bandwidth / 1e9:.1f} GB/s, "
        f"{machine.rate(precision) / 1e9:.0f} GFLOP/s {precision} ({machine.source})",
        soft_wrap=True,
    )
    data: dict[str, Any] = floor_data(costs, machine, precision, seconds)
    return data


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
