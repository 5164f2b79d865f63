"""``vvs eval``: what speed costs in quality, for the demo model or for folders of pictures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vvs.cli.prompt_file import read_prompt_file
from vvs.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from vvs.benchmarks.evaluation import Evaluation
    from vvs.benchmarks.folder_evaluation import FolderSettings, Metric
    from vvs.benchmarks.instruments import Advance
    from vvs.runtime.pipeline import Pipeline


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
    images: Annotated[
        list[Path] | None,
        typer.Option(help="Draw nothing; judge a folder of pictures. Repeat to compare folders."),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Folder of real pictures, for FID, precision and recall.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Captions of the pictures by name, one per line [looked for in the folders]."),
    ] = None,
    inception: Annotated[Path | None, typer.Option(help="InceptionV3's weights, of torch-fidelity.")] = None,
    clip: Annotated[
        Path | None, typer.Option(help="CLIP of the CLIP score: an open_clip model's folder, or its weights.")
    ] = None,
    clip_model: Annotated[
        str | None, typer.Option(help="Model of --clip where that is a file, such as ViT-B-32-quickgelu.")
    ] = None,
    hps: Annotated[Path | None, typer.Option(help="HPSv2's weights.")] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", help="fid, precision-recall, clip or hps; repeat for more [whatever can be measured]."
        ),
    ] = None,
    resamples: Annotated[
        int | None,
        typer.Option(help="Resamples of a Fréchet distance's interval; 0: none [1000; --images: 100]."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the report.")] = Path("out/eval"),
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw a PNG plot.")] = True,
) -> None:
    """Judge the pictures of every mode of the demo model, or, with --images, folders of any model's pictures.

    For the demo: its classifier's score, Fréchet distance, precision and recall, with intervals. For folders:
    FID, precision and recall, CLIP score and HPSv2; no weights are downloaded, say where they lie.
    """
    if images and bundle is not None:
        raise SettingsError(f"{bundle} and --images are both given; give a bundle to draw with, or folders")
    from vvs.benchmarks.optional import require

    require("torch", "judging pictures", "export")
    if images:
        from vvs.benchmarks.folder_evaluation import RESAMPLES as FEW
        from vvs.benchmarks.folder_evaluation import FolderSettings

        _folders(
            FolderSettings(
                tuple(images),
                reference,
                None if prompts is None else tuple(read_prompt_file(prompts)),
                inception,
                clip,
                clip_model,
                hps,
                _metrics(metrics or []),
                FEW if resamples is None else resamples,
            ),
            out,
        )
        return
    if bundle is None:
        raise SettingsError(
            "say which bundle to judge, such as `vvs eval engines/demo`, or which folders with --images"
        )
    from rich.console import Console
    from rich.progress import Progress

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


def _report(
    evaluation: "Evaluation",
    pipeline: "Pipeline",
    backend: str,
    out: Path,
    plots: bool,
    console: "Console",
) -> None:
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


def _metrics(names: list[str]) -> "frozenset[Metric]":
    from vvs.benchmarks.folder_evaluation import Metric

    known = list(Metric)
    for name in names:
        if name not in known:
            raise SettingsError(f"unknown metric {name!r}; there is {', '.join(known)}")
    return frozenset(map(Metric, names))


def _folders(settings: "FolderSettings", out: Path) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from vvs.benchmarks.folder_evaluation import evaluate_folders, sentences
    from vvs.benchmarks.folder_report import folder_rows, write_folder_report
    from vvs.benchmarks.report import print_table

    console = Console()
    with Progress(console=Console(stderr=True), transient=True) as progress:

        def show(what: str, total: int) -> "Advance":
            task = progress.add_task(what, total=total)
            return lambda pictures: progress.advance(task, pictures)

        evaluation = evaluate_folders(settings, show)
    written = write_folder_report(evaluation, out)
    print_table(folder_rows(evaluation), "Folders of pictures, judged", console)
    for sentence in sentences(evaluation):
        console.print(sentence, soft_wrap=True)
    console.print(f"report: {'  '.join(map(str, written))}", soft_wrap=True)
