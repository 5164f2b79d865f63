"""``python -m vvs.benchmarks.full_size``: a recipe at its full size on this machine.

Exports the recipe (with random weights, unless told where others are), opens the bundle on ONNX Runtime and
takes some steps of every mode. Recorded are seconds, peak memory and file sizes of the export, what opening
takes, and seconds and memory of the steps. Other recipes are planned on paper from that, and marked as such.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

from vvs.benchmarks.child import Spent, run_vvs
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.environment import bundle_identity, environment
from vvs.benchmarks.memory import forget_peak, mapped_bytes, own_bytes, peak_bytes
from vvs.benchmarks.report import markdown, print_table, write_json, write_text
from vvs.cli.recipes import find_recipe
from vvs.errors import VvsError
from vvs.runtime.pipeline import Pipeline
from vvs.statistics import StepKind

RANDOM = "random"
MODES = ("ar", "eagle", "lantern", "lantern++", "vvs", "vvs policy=dynamic:0")
ROWS = ("seconds of the export", "peak memory of the export, GB", "bundle, GB", "seconds of an AR step")


@dataclass(frozen=True)
class Stepped:
    """Some steps of one mode, one request."""

    label: str
    config: dict[str, Any]
    prefill_seconds: float
    seconds: dict[StepKind, list[float]]
    tokens: int
    """Image tokens that became known."""
    peak_bytes: int | None

    def row(self) -> dict[str, str]:
        """Cells of the table."""
        cells = {"mode": self.label, "prefill, s": f"{self.prefill_seconds:.2f}"}
        for kind in StepKind:
            seconds = self.seconds[kind]
            cells[f"{kind.value} step, s"] = f"{np.median(seconds):.2f} ({len(seconds)})" if seconds else "-"
        return cells | {"tokens": str(self.tokens), "peak memory, GB": in_gb(self.peak_bytes)}

    def data(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "config": self.config,
            "prefill_seconds": self.prefill_seconds,
            "step_seconds": {kind.value: seconds for kind, seconds in self.seconds.items()},
            "tokens": self.tokens,
            "peak_bytes": self.peak_bytes,
        }


def in_gb(count: float | None) -> str:
    """Bytes as a number of GB; a dash where nothing is known."""
    return "-" if count is None else f"{count / 1e9:.2f}"


def export(recipe: Path, weights: str, precision: str, out: Path) -> Spent:
    """Export in a process of its own."""
    options = ["--out", str(out), "--weights", weights, "--precision", precision, "--force"]
    return run_vvs(["export", str(recipe), *options])


def _last_export(out: Path) -> Spent:
    try:
        return Spent(**json.loads(out.with_suffix(".json").read_text())["export"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise VvsError(f"there is no report of an earlier run at {out}.json; leave --reuse out") from error


def open_bundle(place: Path, *, mapped: bool) -> tuple[Pipeline, dict[str, Any]]:
    """Open a bundle and its target; also the seconds it took, and the bytes that memory grew by."""
    before = own_bytes(), mapped_bytes()
    start = perf_counter()
    pipeline = Pipeline.from_bundle(place, mapped=mapped)
    seconds = perf_counter() - start
    grown = [
        None if now is None or then is None else now - then
        for now, then in zip((own_bytes(), mapped_bytes()), before, strict=True)
    ]
    return pipeline, {"seconds": seconds, "own_bytes": grown[0], "mapped_bytes": grown[1]}


def take_steps(pipeline: Pipeline, contender: Contender, prompt: str | int, steps: int) -> Stepped:
    """Run the prefill and some steps of one mode."""
    forget_peak()
    seconds: dict[StepKind, list[float]] = {kind: [] for kind in StepKind}
    with closing(pipeline.stream([prompt], contender.config, 0, batch=1)) as run:
        start = perf_counter()
        progress = next(run)
        prefill = perf_counter() - start
        for _ in range(steps):
            start = perf_counter()
            progress = next(run)
            if progress.finished:
                break
            kind = progress.kinds[0]
            assert kind is not None  # noqa: S101 - the one request takes part in every step
            seconds[kind].append(perf_counter() - start)
    known = progress.known[0]
    return Stepped(contender.label, contender.config.describe(), prefill, seconds, known, peak_bytes())


def planned(measured: dict[str, Any], here: Path, others: Sequence[Path]) -> Iterator[dict[str, str]]:
    """Rows of a table: the measured recipe, and others in proportion, computed.

    Time and steps go with the bytes of all weights and of the target's; memory goes with the estimate that
    ``vvs export --dry-run`` prints, corrected by what was measured here.
    """
    from vvs.export.plan import footprint, memory
    from vvs.export.recipe import load_recipe

    precision = measured["precision"]
    survey = load_recipe(here).survey(RANDOM)
    base, base_memory = footprint(survey, precision), memory(survey, precision)
    figures = measured["export"]["seconds"], measured["export"]["peak_bytes"], measured["bundle_bytes"]
    step = float(np.median(measured["modes"]["ar"]["step_seconds"]["verify"]))
    yield _plan_row(f"{here.stem}, measured", *figures, step)
    for other in others:
        survey = load_recipe(other).survey(RANDOM)
        size = footprint(survey, precision)
        yield _plan_row(
            f"{other.stem}, computed",
            figures[0] * size.total / base.total,
            figures[1] * memory(survey, precision) / base_memory,
            figures[2] * size.total / base.total,
            step * size.target / base.target,
        )


def _plan_row(label: str, seconds: float, peak: float, size: float, step: float) -> dict[str, str]:
    cells = (f"{seconds:.0f}", in_gb(peak), in_gb(size), f"{step:.2f}")
    return {"recipe": label, **dict(zip(ROWS, cells, strict=True))}


def main(
    recipe: Annotated[str, typer.Argument(help="Path of a recipe, or the name of one in engines/.")],
    weights: Annotated[str, typer.Option(help="Folder of the weights, or `random`.")] = RANDOM,
    precision: Annotated[str, typer.Option(help="As for `vvs export`.")] = "fp16",
    steps: Annotated[int, typer.Option(min=1, help="Steps of each mode.")] = 12,
    bundle: Annotated[Path | None, typer.Option(help="Folder for the bundle; kept.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for NAME.md and NAME.json.")] = Path("out/full_size"),
    contenders: Annotated[
        list[str] | None,
        typer.Option("--run", help="Mode and settings; repeat for more. `ar` is always run."),
    ] = None,
    plans: Annotated[
        list[str] | None, typer.Option("--plan", help="A recipe to plan from the figures; repeat for more.")
    ] = None,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Take the bundle, and the export's figures, of the last run.")
    ] = False,
) -> None:
    """Export a recipe at its full size, take some steps of every mode, and record what it took."""
    console = Console(width=None if Console().is_terminal else 200)
    try:
        _run(
            recipe,
            weights,
            precision,
            steps,
            bundle,
            out,
            contenders or MODES,
            plans or [],
            console,
            reuse=reuse,
        )
    except VvsError as error:
        console.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from error


def _run(
    recipe: str,
    weights: str,
    precision: str,
    steps: int,
    bundle: Path | None,
    out: Path,
    contenders: Sequence[str],
    plans: Sequence[str],
    console: Console,
    *,
    reuse: bool,
) -> None:
    path, others = find_recipe(recipe), [find_recipe(plan) for plan in plans]
    place = bundle or Path("out/full_size") / path.stem
    exported = _last_export(out / path.stem) if reuse else export(path, weights, precision, place)
    mapped, opening_mapped = open_bundle(place, mapped=True)
    stepped = [take_steps(mapped, Contender("ar, mapped", mapped.configure("ar")), _prompt(mapped), steps)]
    del mapped
    pipeline, opening = open_bundle(place, mapped=False)
    files = {file.name: file.stat().st_size for file in sorted(place.iterdir())}
    stepped += _all_modes(pipeline, dict.fromkeys(("ar", *contenders)), steps, console)
    data = {
        "environment": environment(),
        "bundle": bundle_identity(pipeline.bundle.manifest),
        "weights": "random, of the published sizes" if weights == RANDOM else "given",
        "precision": precision,
        "export": exported._asdict(),
        "bundle_bytes": sum(files.values()),
        "files": files,
        "opening": opening,
        "opening_mapped": opening_mapped,
        "modes": {one.label: one.data() for one in stepped},
    }
    _report(data, [one.row() for one in stepped], list(planned(data, path, others)), out / path.stem, console)


def _all_modes(
    pipeline: Pipeline, labels: Sequence[str] | dict[str, None], steps: int, console: Console
) -> list[Stepped]:
    prompt = _prompt(pipeline)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("steps", total=len(labels))
        done = []
        for label in labels:
            done.append(take_steps(pipeline, Contender.parse(label, pipeline), prompt, steps))
            progress.advance(task)
    return done


def _prompt(pipeline: Pipeline) -> str:
    manifest = pipeline.bundle.manifest
    if not manifest.examples:
        raise VvsError("the recipe names no examples, so there is no prompt to start from; add some to it")
    return manifest.examples[0]


def _opened(what: str, opening: dict[str, Any]) -> str:
    own, mapped = (in_gb(opening[name]) for name in ("own_bytes", "mapped_bytes"))
    return (
        f"{what}: {opening['seconds']:.1f} s, {own} GB of memory of its own, {mapped} GB mapped from files."
    )


def _report(
    data: dict[str, Any],
    rows: Sequence[dict[str, str]],
    plan: Sequence[dict[str, str]],
    out: Path,
    console: Console,
) -> None:
    machine, exported = data["environment"], data["export"]
    lines = [
        f"Weights: {data['weights']}. Precision: {data['precision']}.",
        f"Machine: {machine['processor']}, {machine['threads']} threads.",
        f"Export: {exported['seconds']:.0f} s, at most {in_gb(exported['peak_bytes'])} GB of memory; "
        f"bundle {in_gb(data['bundle_bytes'])} GB.",
        _opened("Opening bundle and target, hashes checked", data["opening"]),
        _opened("The same with `mapped`", data["opening_mapped"]),
    ]
    print_table(rows, "Steps: median seconds (number of steps)", console)
    print_table(plan, "Plan", console)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    write_json(out.with_suffix(".json"), data)
    text = "\n".join([f"# {out.name} at its full size", "", *(f"{line}  " for line in lines), ""])
    write_text(out.with_suffix(".md"), f"{text}\n{markdown(rows)}\n{markdown(plan)}")


if __name__ == "__main__":
    typer.run(main)
