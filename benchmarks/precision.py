"""``python -m vvs.benchmarks.precision``: what a precision costs in quality and what it saves, on the demo.

Every precision draws the same prompts with the same seeds, in turns of a batch each, so that a machine that
slows down slows all alike. The first precision is what the others are compared to, picture by picture and
batch by batch. ONNX Runtime cannot compute in bf16 on a CPU: eager PyTorch draws that, after all others, and
its time is not taken, since the times of two engines tell nothing about two precisions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from vvs.arrays import BoolArray, Float64Array, IntArray
from vvs.benchmarks.baselines import eager_engine
from vvs.benchmarks.bootstrap import Estimate, estimate, mean
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.environment import bundle_identity, environment
from vvs.benchmarks.judge import Judge, asked
from vvs.benchmarks.report import markdown, print_table, write_json, write_text
from vvs.decoding import Decoder
from vvs.errors import VvsError
from vvs.export.bundle import export_bundle
from vvs.export.recipe import load_recipe
from vvs.manifest import Manifest
from vvs.precision import PRECISIONS
from vvs.runtime.bundle import Bundle
from vvs.runtime.pipeline import GeneratedImage, Pipeline
from vvs.runtime.prompts import Prompted, encode_each

MODES = ("ar", "vvs")
ONNX_RUNTIME, EAGER = "ONNX Runtime", "eager PyTorch"
NOT_TIMED = "-"
MEGA = 1e6


@dataclass(eq=False)
class Drawn:
    """What one precision drew in one mode."""

    precision: str
    mode: str
    pipeline: Pipeline
    engine: str = ONNX_RUNTIME
    """What draws."""
    images: list[GeneratedImage] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Of every batch; none where time is not taken."""

    @property
    def timed(self) -> bool:
        """Whether time is taken."""
        return self.engine == ONNX_RUNTIME

    @property
    def tokens(self) -> IntArray:
        """Of the pictures ``[M, grid * grid]``."""
        return np.stack([image.tokens for image in self.images])

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """Pictures ``[M, H, W, 3]``."""
        return np.stack([image.pixels for image in self.images])

    @property
    def milliseconds(self) -> float | None:
        """Per picture; None where time is not taken."""
        return 1000 * sum(self.seconds) / len(self.images) if self.timed else None

    def draw(self, prompts: Sequence[str], seed: int) -> None:
        """Draw one batch."""
        config = Contender.parse(self.mode, self.pipeline).config
        start = perf_counter()
        self.images += self.pipeline.generate(prompts, config, seed, batch=len(prompts)).images
        if self.timed:
            self.seconds.append(perf_counter() - start)


@dataclass(frozen=True, eq=False)
class Scored:
    """One precision in one mode beside the first precision in that mode."""

    drawn: Drawn
    score: Estimate
    """Share of pictures that show what was asked for."""
    points: Estimate
    """Percentage points over the first precision, picture by picture."""
    ratio: Estimate | None
    """Milliseconds per picture over those of the first precision, batch by batch; None unless both have."""
    same: float
    """Share of pictures that are the same as the first precision's, token by token."""

    @property
    def bundle_bytes(self) -> int:
        """Of all files of the bundle."""
        return sum(spec.bytes for spec in self.drawn.pipeline.bundle.manifest.files.values())

    def row(self, baseline: str) -> dict[str, str]:
        """The table's row."""
        milliseconds = self.drawn.milliseconds
        return {
            "precision": self.drawn.precision,
            "mode": self.drawn.mode,
            "drawn by": self.drawn.engine,
            "score, % (95% interval)": self.score.shown(".1f", 100),
            f"points over {baseline}": self.points.shown("+.1f"),
            f"same picture as {baseline}, %": f"{100 * self.same:.0f}",
            "bundle, MB": f"{self.bundle_bytes / MEGA:.1f}",
            "ms per picture": NOT_TIMED if milliseconds is None else f"{milliseconds:.0f}",
            f"ms over {baseline}'s": NOT_TIMED if self.ratio is None else self.ratio.shown(".2f"),
        }

    def data(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            "precision": self.drawn.precision,
            "mode": self.drawn.mode,
            "drawn_by": self.drawn.engine,
            "bundle": bundle_identity(self.drawn.pipeline.bundle.manifest),
            "bundle_bytes": self.bundle_bytes,
            "score": self.score.value,
            "score_95": [self.score.low, self.score.high],
            "points": vars(self.points),
            "same_pictures": self.same,
            "milliseconds": self.drawn.milliseconds,
            "ratio": self.ratio and vars(self.ratio),
        }


def _median(samples: Float64Array) -> Estimate:
    return estimate(samples, lambda drawn: np.median(drawn, axis=-1))


def _ratio(drawn: Drawn, baseline: Drawn) -> Estimate | None:
    if not (drawn.timed and baseline.timed):
        return None
    return _median(np.array(drawn.seconds) / np.array(baseline.seconds))


def engine_for(manifest: Manifest) -> str:
    """What draws a bundle here."""
    return EAGER if PRECISIONS[manifest.precision].compute == "bf16" else ONNX_RUNTIME


def label(manifest: Manifest) -> str:
    """A bundle's precision, with what is kept in fp32."""
    kept = f", fp32: {' '.join(manifest.kept_fp32)}" if manifest.kept_fp32 else ""
    return manifest.precision + kept


def compare(drawn: Drawn, baseline: Drawn, hits: BoolArray, baseline_hits: BoolArray) -> Scored:
    """Score what was drawn, beside the first precision's pictures of the same prompts and seeds.

    Args:
        drawn: of one precision.
        baseline: of the first one, in the same mode.
        hits: which pictures show what was asked for ``[M]``.
        baseline_hits: the same of the baseline's ``[M]``.

    """
    return Scored(
        drawn,
        mean(hits.astype(np.float64)),
        mean(100 * (hits.astype(np.float64) - baseline_hits)),
        _ratio(drawn, baseline),
        float((drawn.tokens == baseline.tokens).all(axis=1).mean()),
    )


def exported(recipe: Path, precision: str, folder: Path, console: Console) -> Path:
    """The recipe's bundle in a precision, below ``folder``; an unchanged one is not built again."""
    read = load_recipe(recipe)
    numerics = read.numerics(precision)
    models = read.models(numerics=numerics)
    prompted = Prompted(models.conditioning, models.geometry.prompt_length, models.read_tokenizer)
    prompts = encode_each(prompted, models.examples)
    return export_bundle(models, folder / precision, numerics=numerics, prompts=prompts, console=console).path


def opened(place: Path, recipe: Path, threads: int | None) -> Pipeline:
    """A bundle on what draws it here: the models of its recipe in PyTorch if it computes in bf16."""
    bundle = Bundle.open(place)
    if engine_for(bundle.manifest) == ONNX_RUNTIME:
        return Pipeline.from_bundle(place, threads=threads)
    if threads is not None:
        torch.set_num_threads(threads)
    return Pipeline(bundle, Decoder(eager_engine(recipe, bundle), bundle.codebook))


def draw_all(
    pipelines: Sequence[Pipeline],
    prompts: Sequence[str],
    seed: int,
    batch: int,
    advance: Callable[[int], None],
) -> list[Drawn]:
    """Draw all prompts in every precision and mode, in turns of a batch, after one unmeasured batch each.

    What is not timed is drawn when all that is has been, so that it disturbs no time.
    """
    manifests = [(p, p.bundle.manifest) for p in pipelines]
    runs = [Drawn(label(of), mode, p, engine_for(of)) for mode in MODES for p, of in manifests]
    timed, others = ([run for run in runs if run.timed is wanted] for wanted in (True, False))
    for run in timed:
        Drawn(run.precision, run.mode, run.pipeline).draw(prompts[:batch], seed)
    for together in (timed, others):
        for start in range(0, len(prompts), batch):
            some = prompts[start : start + batch]
            for run in together:
                run.draw(some, seed + start)
                advance(len(some))
    return runs


def main(
    recipe: Annotated[Path, typer.Argument(help="Recipe of the demo model and of the bundles.")] = Path(
        "engines/demo.toml"
    ),
    out: Annotated[
        Path, typer.Option(help="Folder for precision.md, precision.json and the bundles.")
    ] = Path("out/precision"),
    precisions: Annotated[
        list[str] | None,
        typer.Option(
            "--precision", help=f"Exported and measured; repeat for more [{', '.join(PRECISIONS)}]."
        ),
    ] = None,
    bundles: Annotated[
        list[Path] | None,
        typer.Option("--bundle", help="Measured as it is, nothing is exported; repeat for more."),
    ] = None,
    weights: Annotated[Path, typer.Option(help="Folder with the judge's weights.")] = Path(
        "engines/weights/demo"
    ),
    images: Annotated[int, typer.Option(min=2, help="Pictures per precision and mode.")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="Pictures drawn at once.")] = 8,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of a graph [every CPU].")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first picture.")] = 0,
) -> None:
    """Score AR and VVS in several precisions, side by side; the first is the baseline."""
    console = Console()
    try:
        judge = Judge(weights)
        places = bundles or [
            exported(recipe, precision, out / "bundles", console) for precision in precisions or PRECISIONS
        ]
        pipelines = [opened(place, recipe, threads) for place in places]
        prompts, colours, garments = asked(images)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("drawing", total=len(prompts) * len(pipelines) * len(MODES))
            runs = draw_all(pipelines, prompts, seed, batch, lambda count: progress.advance(task, count))
        hits = [judge.judge(run.pixels, colours, garments).both_right for run in runs]
        firsts = {run.mode: i for i, run in reversed(list(enumerate(runs)))}
        scored = [
            compare(run, runs[firsts[run.mode]], own, hits[firsts[run.mode]])
            for run, own in zip(runs, hits, strict=True)
        ]
        _report(scored, len(prompts), threads, out, console)
    except VvsError as error:
        console.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from error


def _report(scored: list[Scored], pictures: int, threads: int | None, out: Path, console: Console) -> None:
    table = [one.row(scored[0].drawn.precision) for one in scored]
    machine = environment(threads)
    note = (
        f"{pictures} pictures per row, of the same prompts and seeds, on {machine['processor']}, "
        f"{machine['threads']} threads, ONNX Runtime on the CPU"
    )
    if not all(one.drawn.timed for one in scored):
        note += f"; {EAGER} drew bf16, which that cannot compute, and its time was not taken"
    print_table(table, note, console)
    write_text(out / "precision.md", markdown(table) + f"\n{note}.\n")
    data = {"schema": 2, "environment": machine, "pictures": pictures, "runs": [one.data() for one in scored]}
    write_json(out / "precision.json", data)


if __name__ == "__main__":
    typer.run(main)
