"""``python -m vvs.benchmarks.score``: what speed costs in quality, on the demo model.

Every contender draws the same prompts with the same seeds; the judge says what share shows what was asked
for, and how far the pictures as a whole are from real photographs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from vvs.arrays import BoolArray, Float64Array, IntArray
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.demo import DEFAULT_CONTENDERS
from vvs.benchmarks.environment import environment
from vvs.benchmarks.judge import Judge, Judgement, asked, frechet_distance, interval, real_pictures
from vvs.benchmarks.report import markdown, print_table, write_json, write_text
from vvs.errors import VvsError
from vvs.export.training.garments import HELD_OUT_PAIRS
from vvs.runtime.images import contact_sheet, save_sheet
from vvs.runtime.pipeline import GeneratedImage, Pipeline
from vvs.statistics import StepKind

SHOWN_ROWS, SHOWN_COLUMNS = 8, 12


@dataclass(frozen=True, eq=False)
class Scored:
    """One contender's pictures and what the judge made of them."""

    label: str
    pixels: NDArray[np.uint8]  # [M, 32, 32, 3]
    judgement: Judgement
    config: dict[str, Any]
    step_compression: float
    accepted: float
    """Mean accepted length over verified steps."""


def draw(
    pipeline: Pipeline,
    contender: Contender,
    prompts: Sequence[str],
    seed: int,
    batch: int,
    progress: Progress,
) -> tuple[NDArray[np.uint8], float, float]:
    """Draw all prompts in batches; returns pixels, mean step compression and mean accepted length."""
    task = progress.add_task(contender.label, total=len(prompts))
    images: list[GeneratedImage] = []
    for step in pipeline.stream(list(prompts), contender.config, seed, batch=batch):
        images += step.finished
        progress.advance(task, len(step.finished))
    compression = float(np.mean([image.statistics.step_compression for image in images]))
    accepted = float(np.mean([image.statistics.mean_accepted(StepKind.VERIFY) for image in images]))
    return np.stack([image.pixels for image in images]), compression, accepted


def figures(
    scored: Scored, real: Float64Array, held_out: BoolArray, baseline: Scored
) -> tuple[dict[str, str], dict[str, Any]]:
    """The table's row and the plain numbers of one contender."""
    both = interval(scored.judgement.both_right)
    gap = 100 * (both.mean - float(baseline.judgement.both_right.mean()))
    distance = frechet_distance(scored.judgement.features, real)
    colour, garment = scored.judgement.colour_right.mean(), scored.judgement.garment_right.mean()
    unseen = float(scored.judgement.both_right[held_out].mean()) if held_out.any() else float("nan")
    row = {
        "mode": scored.label,
        "step compression": f"{scored.step_compression:.2f}",
        "accepted": f"{scored.accepted:.2f}",
        "score, % (95% interval)": str(both),
        f"points over {baseline.label}": f"{gap:+.1f}",
        "colour, %": f"{100 * colour:.1f}",
        "garment, %": f"{100 * garment:.1f}",
        "unseen pairs, %": f"{100 * unseen:.1f}",
        "Fréchet distance": f"{distance:.2f}",
    }
    data = {
        "config": scored.config,
        "step_compression": scored.step_compression,
        "accepted": scored.accepted,
        "score": both.mean,
        "score_95": [both.low, both.high],
        "colour": float(colour),
        "garment": float(garment),
        "unseen_pairs": unseen,
        "frechet_distance": distance,
    }
    return row, data


def _real(judge: Judge, colours: IntArray, garments: IntArray) -> Scored:
    pixels = real_pictures(colours, garments)
    return Scored("real photographs", pixels, judge.judge(pixels, colours, garments), {}, 0.0, 0.0)


def main(
    bundle: Annotated[Path, typer.Argument(help="Bundle of the demo model.")] = Path("engines/demo"),
    weights: Annotated[Path, typer.Option(help="Folder with the judge's weights.")] = Path(
        "engines/weights/demo"
    ),
    out: Annotated[Path, typer.Option(help="Folder for score.md, score.json and pictures.")] = Path(
        "out/score"
    ),
    contenders: Annotated[
        list[str] | None,
        typer.Option("--run", help="Mode and settings, such as 'vvs policy=uniform:3'; repeat for more."),
    ] = None,
    images: Annotated[int, typer.Option(min=2, help="Pictures per contender.")] = 1000,
    batch: Annotated[int, typer.Option(min=1, help="Pictures drawn at once.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first picture.")] = 0,
) -> None:
    """Score AR and every mode in one run; the first contender is the baseline."""
    console = Console()
    try:
        judge, pipeline = Judge(weights), Pipeline.from_bundle(bundle)
        chosen = [Contender.parse(text, pipeline) for text in contenders or DEFAULT_CONTENDERS]
        prompts, colours, garments = asked(images)
        real = _real(judge, colours, garments)
        scored = []
        with Progress(console=console, transient=True) as progress:
            for contender in chosen:
                pixels, compression, accepted = draw(pipeline, contender, prompts, seed, batch, progress)
                judgement = judge.judge(pixels, colours, garments)
                config = contender.config.describe()
                scored.append(Scored(contender.label, pixels, judgement, config, compression, accepted))
        _report(scored, real, prompts, (colours, garments), out, console)
    except VvsError as error:
        console.print(f"[red]error:[/red] {error}")
        raise typer.Exit(1) from error


def _report(
    scored: list[Scored],
    real: Scored,
    prompts: list[str],
    wanted: tuple[IntArray, IntArray],
    out: Path,
    console: Console,
) -> None:
    held_out = np.array([pair in HELD_OUT_PAIRS for pair in zip(*(w.tolist() for w in wanted), strict=True)])
    results = [figures(s, real.judgement.features, held_out, scored[0]) for s in scored]
    table = [row for row, _ in results]
    ceiling = interval(real.judgement.both_right)
    note = f"{len(prompts)} pictures per mode; the judge is right on {ceiling}% of real test photographs"
    print_table(table, note, console)
    write_text(out / "score.md", markdown(table) + f"\n{note}.\n")
    write_json(
        out / "score.json",
        {
            "schema": 1,
            "environment": environment(),
            "pictures": len(prompts),
            "real_photographs": {"score": ceiling.mean, "score_95": [ceiling.low, ceiling.high]},
            "contenders": {s.label: data for s, (_, data) in zip(scored, results, strict=True)},
        },
    )
    for s in scored:
        cells = [
            [
                s.pixels[r * SHOWN_COLUMNS + c] if r * SHOWN_COLUMNS + c < len(prompts) else None
                for c in range(SHOWN_COLUMNS)
            ]
            for r in range(min(SHOWN_ROWS, -(-len(prompts) // SHOWN_COLUMNS)))
        ]
        labels = ["; ".join(prompts[r * SHOWN_COLUMNS : (r + 1) * SHOWN_COLUMNS]) for r in range(len(cells))]
        name = s.label.replace(" ", "_").replace("/", "-")
        save_sheet(out / f"{name}.png", contact_sheet(cells, labels, [""] * SHOWN_COLUMNS))


if __name__ == "__main__":
    typer.run(main)
