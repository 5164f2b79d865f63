"""``vvs generate``: prompts to PNG files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vvs.cli.output import show_log, write_json
from vvs.cli.prompt_file import read_prompt_file
from vvs.errors import PromptError, SettingsError

if TYPE_CHECKING:
    from vvs.config import GenerationConfig
    from vvs.runtime.pipeline import GeneratedImage, Pipeline
    from vvs.runtime.pipeline import Progress as Step


@dataclass(frozen=True)
class _Run:
    """One mode's share of the command: every prompt and seed, under one configuration."""

    mode: str
    config: "GenerationConfig"
    prompts: list[str]
    seeds: list[int]


def generate(
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    prompts: Annotated[
        list[str] | None, typer.Argument(help="What to draw; one picture or more each.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Text file with one prompt per line.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the pictures.")] = Path("out"),
    seed: Annotated[int, typer.Option(help="Seed of each prompt's first picture.")] = 0,
    count: Annotated[int, typer.Option(help="Pictures per prompt, with seeds counting up.")] = 1,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="ar, eagle, lantern, lantern++ or vvs; give it again to compare modes."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="When to skip verification: never, uniform:2, dynamic:0.7.")
    ] = None,
    acceptance: Annotated[
        str | None, typer.Option(help="exact, lantern:k=32,delta=0.2 or lantern++:k=32,lam=3.")
    ] = None,
    selector: Annotated[
        str | None, typer.Option(help="Which path a skipped step takes: random or confident.")
    ] = None,
    tree: Annotated[str | None, typer.Option(help="Draft tree; `vvs inspect` lists a bundle's.")] = None,
    skip_tree: Annotated[
        str | None, typer.Option(help="Draft tree of steps that are planned to be skipped; may be wide.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always takes the likeliest token.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this mass.")] = None,
    cfg: Annotated[float | None, typer.Option(help="Scale of classifier-free guidance.")] = None,
    draft_cfg_ratio: Annotated[
        float | None,
        typer.Option(help="Guidance of drafting over that of the target; above 1 helps skipped steps."),
    ] = None,
    coupled: Annotated[
        bool | None,
        typer.Option(
            help="Draw by noise of seed and position alone: exact modes then draw the very picture of ar."
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Pictures generated at once.")] = None,
    contact_sheet: Annotated[
        bool,
        typer.Option("--contact-sheet", help="Also write contact-sheet.png: prompts by modes and seeds."),
    ] = False,
    json_to: Annotated[
        str | None, typer.Option("--json", help="Write statistics to this file; - is standard output.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto or chrome://tracing to this file.")
    ] = None,
    nvtx: Annotated[bool, typer.Option("--nvtx", help="Mark every phase for Nsight Systems.")] = False,
    backend: Annotated[
        str, typer.Option(help="What runs the graphs; `vvs doctor` lists them.")
    ] = "onnxruntime",
    threads: Annotated[int | None, typer.Option(help="Threads of the CPU backend.")] = None,
    mapped: Annotated[
        bool,
        typer.Option(
            "--mapped", help="CPU backend: leave weights in their file; opens at once, runs slower."
        ),
    ] = False,
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs/--no-cuda-graphs", help="Replay steps on a GPU as captured graphs.")
    ] = True,
    whole_image_graph: Annotated[
        bool,
        typer.Option(
            "--whole-image-graph", help="On a GPU, decode each batch as one graph; no progress within it."
        ),
    ] = False,
    verify: Annotated[bool, typer.Option(help="Check the hash of every file of the bundle first.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace pictures that are there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Generate pictures. What is left out is taken from the bundle's recommended settings."""
    if count < 1:
        raise SettingsError(f"--count is {count}, but it must be at least 1")
    wanted = _read_prompts(prompts or [], file)
    settings = {
        "policy": policy,
        "acceptance": acceptance,
        "selector": selector,
        "tree": tree,
        "skip_tree": skip_tree,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "cfg_scale": cfg,
        "draft_cfg_ratio": draft_cfg_ratio,
        "coupled": coupled,
    }
    from vvs.runtime.pipeline import Pipeline
    from vvs.runtime.settings import default_mode
    from vvs.runtime.tracing import traced

    options: dict[str, Any] = {} if threads is None else {"threads": threads}
    if mapped:
        options["mapped"] = True
    if not cuda_graphs:
        options["cuda_graphs"] = False
    if whole_image_graph:
        options["whole_image_graph"] = True
    if not quiet:
        show_log("vvs.device")
    pipeline = Pipeline.from_bundle(bundle, backend, verify=verify, **options)
    random_parts = pipeline.bundle.manifest.random_parts
    if random_parts and not quiet:
        typer.echo(f"random weights: {', '.join(random_parts)}", err=True)
    modes = list(dict.fromkeys(mode or [default_mode(pipeline.bundle.manifest)]))
    runs = [
        _Run(
            mode=name,
            config=pipeline.configure(name, **settings),
            prompts=[prompt for prompt in wanted for _ in range(count)],
            seeds=[seed + i for _ in wanted for i in range(count)],
        )
        for name in modes
    ]
    album = _Album(out, pipeline, overwrite=overwrite)
    album.prepare(runs, sheet=contact_sheet)
    with traced(trace, nvtx=nvtx):
        for run in runs:
            _draw(pipeline, run, batch, album, quiet=quiet or json_to == "-")
    if contact_sheet:
        album.write_sheet(wanted, modes, count)
    if json_to is not None:
        write_json(album.statistics(), json_to)
    if not quiet and json_to != "-":
        album.summarise()


def _read_prompts(prompts: Sequence[str], file: Path | None) -> list[str]:
    listed = list(prompts)
    if file is not None:
        listed += read_prompt_file(file)
    if not listed:
        raise PromptError("no prompt is given; add one after the bundle, or name a file of them with --file")
    return listed


def _draw(pipeline: "Pipeline", run: _Run, batch: int | None, album: "_Album", *, quiet: bool) -> None:
    """Generate the pictures of one mode, writing each batch as soon as it is finished."""
    steps = pipeline.stream(run.prompts, run.config, run.seeds, batch=batch)
    try:
        with _progress_bar(run, quiet=quiet) as show:
            for progress in steps:
                for image in progress.finished:
                    album.add(run.mode, image)
                show(progress)
    finally:
        steps.close()


@contextmanager
def _progress_bar(run: _Run, *, quiet: bool) -> "Iterator[Any]":
    """Show image tokens as they come, on stderr."""
    if quiet:
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{run.mode}: {len(run.prompts)} pictures", total=len(run.prompts))

        def show(step: "Step") -> None:
            bar.update(task, completed=step.first + sum(step.known) / step.total)

        yield show


class _Album:
    """The pictures of one command and the files they go to."""

    def __init__(self, folder: Path, pipeline: "Pipeline", *, overwrite: bool) -> None:
        self._folder = folder
        self._manifest = pipeline.bundle.manifest
        self._overwrite = overwrite
        self._images: list[tuple[str, Path, GeneratedImage]] = []

    def prepare(self, runs: list[_Run], *, sheet: bool) -> None:
        """Make the folder, and refuse to replace files before anything is generated."""
        from vvs.runtime.images import SHEET_FILE, file_name

        self._folder.mkdir(parents=True, exist_ok=True)
        names = [
            file_name(index, prompt, run.mode, seed)
            for run in runs
            for index, (prompt, seed) in enumerate(zip(run.prompts, run.seeds, strict=True))
        ]
        for name in [*names, SHEET_FILE] if sheet else names:
            if (self._folder / name).exists() and not self._overwrite:
                raise SettingsError(
                    f"{self._folder / name} exists; choose another folder with --out, or --overwrite it"
                )

    def add(self, mode: str, image: "GeneratedImage") -> None:
        """Write one picture."""
        from vvs.runtime.images import file_name, metadata_of, save_png

        path = self._folder / file_name(image.index, image.prompt, mode, image.seed)
        save_png(path, image.pixels, metadata_of(image, mode, self._manifest))
        self._images.append((mode, path, image))

    def write_sheet(self, prompts: list[str], modes: list[str], count: int) -> None:
        """Write the contact sheet: a row per prompt, a column per mode and seed."""
        from vvs.runtime.images import SHEET_FILE, contact_sheet, save_sheet

        pixels = {(mode, image.index): image.pixels for mode, _, image in self._images}
        first = self._images[0][2].seed
        columns = [f"{mode}, seed {first + i}" for mode in modes for i in range(count)]
        rows = [
            [pixels[mode, row * count + i] for mode in modes for i in range(count)]
            for row in range(len(prompts))
        ]
        save_sheet(self._folder / SHEET_FILE, contact_sheet(rows, prompts, columns))

    def statistics(self) -> dict[str, Any]:
        """Everything that was counted and timed, as plain JSON values."""
        return {
            "bundle": self._manifest.name,
            "source": self._manifest.source,
            "images": [
                {
                    "file": str(path),
                    "prompt": image.prompt,
                    "seed": image.seed,
                    "mode": mode,
                    "config": image.config.describe(),
                    "statistics": image.statistics.to_dict(),
                }
                for mode, path, image in self._images
            ],
        }

    def summarise(self) -> None:
        """Say in a line per mode what came out."""
        by_mode: dict[str, list[GeneratedImage]] = {}
        for mode, _, image in self._images:
            by_mode.setdefault(mode, []).append(image)
        for mode, images in by_mode.items():
            passes = sum(image.statistics.forward_passes for image in images) / len(images)
            compression = sum(image.statistics.step_compression for image in images) / len(images)
            typer.echo(
                f"{mode}: {len(images)} in {self._folder}, {passes:.1f} target passes each, "
                f"{compression:.2f} tokens per pass"
            )
