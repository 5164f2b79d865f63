"""``vvs eval``: what speed costs in quality, for the demo model or for folders of pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vvs.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console


def evaluate(
    bundle: Annotated[Path | None, typer.Argument(help="Bundle of the demo model.")] = None,
    contenders: Annotated[
        list[str] | None,
        typer.Option(
            "--run", help="Mode and settings, such as 'vvs policy=uniform:3'; the first is the baseline."
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Pictures per mode.")] = 1000,
    batch: Annotated[int | None, typer.Option(help="Pictures drawn at once.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first picture.")] = 0,
    judge: Annotated[Path, typer.Option(help="Folder of the demo's classifier.")] = Path(
        "engines/weights/demo"
    ),
    pictures: Annotated[
        Path, typer.Option(help="Folder that keeps the pictures; a run that was stopped goes on from it.")
    ] = Path("out/pictures"),
    backend: Annotated[str, typer.Option(help="Backend that runs the graphs.")] = "onnxruntime",
    resamples: Annotated[
        int | None, typer.Option(help="Resamples of the Fréchet distance's interval; 0: no interval.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the report.")] = Path("out/eval"),
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw a PNG plot.")] = True,
) -> None:
    """Judge the pictures of every mode: score, Fréchet distance, precision and recall, with intervals."""
    if bundle is None:
        raise SettingsError("say which bundle to judge, such as `vvs eval engines/demo`")
    from rich.console import Console
    from rich.progress import Progress

    from vvs.benchmarks.optional import require

    require("torch", "the demo's judge", "export")
    if plots:
        require("matplotlib", "a plot (leave it out with --no-plots)", "bench")
    from vvs.benchmarks.contender import Contender
    from vvs.benchmarks.evaluation import RESAMPLES, SWEEP, EvaluationSettings
    from vvs.benchmarks.evaluation import evaluate as run
    from vvs.benchmarks.exam import DemoExam
    from vvs.benchmarks.gallery import Gallery
    from vvs.runtime.pipeline import Pipeline

    settings = EvaluationSettings(count, seed, batch, RESAMPLES if resamples is None else resamples)
    pipeline = Pipeline.from_bundle(bundle, backend)
    chosen = [Contender.parse(text, pipeline) for text in contenders or SWEEP]
    exam = DemoExam.of(judge, count)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        tasks = {one.label: progress.add_task(one.label, total=count) for one in chosen}
        evaluation = run(
            chosen,
            exam,
            Gallery(pictures, pipeline, backend),
            settings,
            lambda label, drawn: progress.advance(tasks[label], drawn),
        )
    _report(evaluation, pipeline, backend, out, plots, Console())


def _report(evaluation: Any, pipeline: Any, backend: str, out: Path, plots: bool, console: "Console") -> None:
    from vvs.benchmarks.evaluation_report import (
        draw_plot,
        published_rows,
        quality_rows,
        sentences,
        speed_quality_rows,
        write_report,
    )
    from vvs.benchmarks.published import PUBLISHED_NOTE
    from vvs.benchmarks.report import print_table

    manifest = pipeline.bundle.manifest
    written = write_report(evaluation, manifest, backend, out)
    if plots:
        written.append(draw_plot(evaluation, out / "eval.png"))
    print_table(quality_rows(evaluation), f"Pictures of {manifest.name}, judged", console)
    for sentence in sentences(evaluation):
        console.print(sentence, soft_wrap=True)
    print_table(speed_quality_rows(evaluation), "Speed against quality", console)
    print_table(published_rows(), "The same table of the paper", console)
    console.print(PUBLISHED_NOTE, soft_wrap=True)
    console.print(f"report: {'  '.join(map(str, written))}", soft_wrap=True)
