"""``python -m vvs.benchmarks.loop_cost``: what the decoding loop costs by itself, without any engine.

Accepting, selecting, sampling, the feature cache and scheduling over an engine that answers at once, against
vocabulary, batch size and image size. What a backend's session does between graphs is not in it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from vvs.benchmarks.environment import environment
from vvs.benchmarks.idle_engine import HIDDEN, SEED, IdleEngine
from vvs.benchmarks.report import Rows, markdown, print_table, write_json, write_text
from vvs.benchmarks.stacks import Stack, collapsed, draw, sampled
from vvs.codebook import Codebook
from vvs.decoding import Decoder
from vvs.errors import VvsError
from vvs.modes import configure
from vvs.statistics import Span, StepKind, StepTimes
from vvs.step import StepEvent
from vvs.tree_shape import TreeShape
from vvs.uniforms import UniformStream

NEIGHBOURS = 64
MICRO = 1e6
PUBLISHED_TREE = TreeShape(k=10, depth=4, total=58)


@dataclass(frozen=True)
class Case:
    """One point that is measured."""

    mode: str = "vvs"
    vocabulary: int = 16384
    batch: int = 1
    grid: int = 16


VOCABULARIES = (512, 4096, 16384, 65536)
BATCHES = (1, 2, 4, 8)
GRIDS = (8, 16, 24, 32)
BASE = Case()
CASES = (
    *(replace(BASE, mode=mode) for mode in ("ar", "eagle")),
    *(replace(BASE, vocabulary=vocabulary) for vocabulary in VOCABULARIES),
    *(replace(BASE, batch=batch) for batch in BATCHES[1:]),
    *(replace(BASE, grid=grid, vocabulary=512) for grid in GRIDS),
)


@dataclass(frozen=True)
class Cost:
    """What a case cost. Microseconds outside the engine, medians, so that interruptions do not count."""

    case: Case
    steps: Mapping[StepKind, int]
    """Steps of the batch."""
    step: Mapping[StepKind, float]
    """Of one step of the batch."""
    accept: float
    """Of ``step``, verified: judging and sampling."""
    host: float
    """Of ``step``, verified: assembling inputs, policies, bookkeeping."""
    late_over_early: float
    """A verified step of the last quarter over one of the first: 1 if it costs the same however late."""

    @property
    def image(self) -> float:
        """Of one whole image, the prompt left out."""
        return sum(self.step[kind] * self.steps[kind] for kind in StepKind) / self.case.batch

    @property
    def verified(self) -> float:
        """Of one verified step of the batch."""
        return self.step[StepKind.VERIFY]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"image": self.image}


def measure(case: Case) -> Cost:
    """Decode one batch; steps are timed by the loop's own stopwatch."""
    by_kind: dict[StepKind, list[StepTimes]] = {kind: [] for kind in StepKind}
    for event in _decode(case):
        if event.records:
            by_kind[event.records[0].kind].append(event.times)
    verified = by_kind[StepKind.VERIFY]
    outside = {kind: [step.outside_engines for step in steps] for kind, steps in by_kind.items()}
    quarter = max(1, len(verified) // 4)
    early, late = outside[StepKind.VERIFY][:quarter], outside[StepKind.VERIFY][-quarter:]
    return Cost(
        case=case,
        steps={kind: len(steps) for kind, steps in by_kind.items()},
        step={kind: _median(seconds) for kind, seconds in outside.items()},
        accept=_median([step.spans[Span.ACCEPT] for step in verified]),
        host=_median([step.spans[Span.HOST] for step in verified]),
        late_over_early=_median(late) / _median(early),
    )


def _decode(case: Case) -> Iterator[StepEvent]:
    engine = IdleEngine(case.grid, case.vocabulary, PUBLISHED_TREE)
    decoder = Decoder(engine, _codebook(case.vocabulary))
    tree = None if case.mode == "ar" else PUBLISHED_TREE.name
    settings = {"acceptance": f"lantern:k={NEIGHBOURS},delta=0.2"} if case.mode == "vvs" else {}
    config = configure(case.mode, tree, **settings)
    streams = [UniformStream(seed) for seed in range(case.batch)]
    with closing(decoder.run({}, [config] * case.batch, streams)) as events:
        yield from events


def _median(seconds: Sequence[float]) -> float:
    return MICRO * float(np.median(seconds)) if seconds else 0.0


def _codebook(vocabulary: int) -> Codebook:
    """Neighbours by index: ranking real ones would take longer than everything that is measured."""
    latents = np.random.default_rng(SEED).normal(size=(vocabulary, 8))
    nearest = (np.arange(vocabulary)[:, None] + np.arange(1, NEIGHBOURS + 2)) % vocabulary
    return Codebook(latents, nearest)


def exponent(sizes: Iterable[int], costs: Iterable[float]) -> float:
    """The power of growth ``cost ~ size^e``, by least squares on logarithms: at most 1 is linear."""
    return float(np.polyfit(np.log(list(sizes)), np.log(list(costs)), 1)[0])


def growth(costs: Iterable[Cost]) -> dict[str, float]:
    """How the cost grows: of a step with vocabulary and batch, of an image with its tokens."""
    by_case = {cost.case: cost for cost in costs}
    vocabulary = [by_case[replace(BASE, vocabulary=size)].verified for size in VOCABULARIES]
    batch = [by_case[replace(BASE, batch=size)].verified for size in BATCHES]
    tokens = [by_case[replace(BASE, grid=size, vocabulary=512)].image for size in GRIDS]
    return {
        "step with vocabulary": exponent(VOCABULARIES, vocabulary),
        "step with batch": exponent(BATCHES, batch),
        "image with tokens": exponent([grid * grid for grid in GRIDS], tokens),
    }


def rows(costs: Iterable[Cost]) -> Rows:
    """The table."""
    return [
        {
            "mode": cost.case.mode,
            "vocabulary": str(cost.case.vocabulary),
            "batch": str(cost.case.batch),
            "tokens": str(cost.case.grid**2),
            "µs verify": f"{cost.verified:.0f}",
            "accept": f"{cost.accept:.0f}",
            "host": f"{cost.host:.0f}",
            "µs skip": f"{cost.step[StepKind.SKIP]:.0f}",
            "ms/image": f"{cost.image / 1e3:.1f}",
            "late/early": f"{cost.late_over_early:.2f}",
        }
        for cost in costs
    ]


def _data(costs: list[Cost], grown: dict[str, float]) -> dict[str, Any]:
    settings = {"tree": PUBLISHED_TREE.name, "hidden": HIDDEN, "neighbours": NEIGHBOURS}
    cases = [cost.to_dict() for cost in costs]
    return {"schema": 1, "environment": environment(), "settings": settings, "costs": cases, "growth": grown}


def main(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the results.")] = Path("out/loop_cost"),
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw the breakdown as PNG.")] = True,
) -> None:
    """Time the loop over an engine that answers at once, and show where its time goes."""
    console = Console()
    try:
        measure(replace(BASE, grid=8))  # what Python and numpy do once
        progress = Console(stderr=True)
        costs = [measure(case) for case in track(CASES, "measuring", console=progress, transient=True)]
        _, stacks = sampled(lambda: measure(replace(BASE, grid=32)))
        grown = growth(costs)
        print_table(rows(costs), f"The loop without an engine, tree {PUBLISHED_TREE.name}", console)
        for what, power in grown.items():
            console.print(f"{what}: grows as size^{power:.2f}")
        write_text(out / "loop_cost.md", markdown(rows(costs)))
        write_json(out / "loop_cost.json", _data(costs, grown))
        inside: Counter[Stack] = Counter()
        for stack, count in stacks.items():
            if not any("idle_engine" in name for name in stack):
                inside[_inside(stack)] += count
        write_text(out / "loop_cost.collapsed", collapsed(inside))
        if plots:
            draw(inside, out / "loop_cost.png", f"The loop in mode vvs, vocabulary {BASE.vocabulary}")
        console.print(f"results: {out / 'loop_cost.json'}   stacks: {out / 'loop_cost.collapsed'}")
    except VvsError as error:
        console.print(f"[red]error:[/red] {error}")
        raise typer.Exit(1) from error


def _inside(stack: Stack) -> Stack:
    """The part of a stack that is the loop's, from its step on."""
    starts = [i for i, name in enumerate(stack) if name == "decoding.step"]
    return stack[starts[0] :] if starts else ("before and between steps",)


if __name__ == "__main__":
    typer.run(main)
