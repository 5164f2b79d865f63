"""``python -m vvs.benchmarks.gpu_check``: everything that only a GPU can show, in one command and one file.

Kernels against numpy, parity with the CPU and with recordings, graphs against plain launches, the sanitizer,
and the time of every kind of step against its memory traffic, with whatever can run graphs here. The report
is to be sent. ``--device host`` makes the same checks on the stand-in, as a test of this command.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vvs.benchmarks.environment import bundle_identity, environment
from vvs.benchmarks.gpu_latency import step_latencies
from vvs.benchmarks.gpu_parity import (
    Subject,
    against_recordings,
    against_the_cpu,
    graphs_against_launches,
    image_against_steps,
)
from vvs.benchmarks.gpu_report import Check, Finding, GpuReport, NotHereError, Status, make
from vvs.benchmarks.gpu_tests import Selection, find_sanitizer, run_tests, sanitize
from vvs.benchmarks.gpu_ways import GPU_WAYS, REQUESTS, STAND_IN_WAYS, Way
from vvs.benchmarks.report import write_json, write_text
from vvs.errors import BackendError, SettingsError, VvsError
from vvs.manifest import draft_tree_graph
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.cuda import checked_gpu, load_packages
from vvs.runtime.device.host import NAME as STAND_IN_NAME

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

GPU, HOST = "gpu", "host"
TESTS = Path(__file__).resolve().parents[1] / "tests"
RECORDINGS = Path(__file__).resolve().parents[2] / "shared" / "golden"
KERNEL_TESTS = "runtime_kernels/test_on_devices.py"
SANITIZED_THREADS = "100"
"""Threads per block under the sanitizer: no power of two, and more than a warp."""
MINUTES = 10.0
UNUSABLE = 2
STYLES = {Status.PASSED: "green", Status.FAILED: "red", Status.SKIPPED: "yellow"}


@dataclass(frozen=True)
class Plan:
    """What is checked, on what."""

    device: str
    stand_in: bool
    ways: tuple[Way, ...]
    tests: Path
    recordings: Path
    seconds: float
    """For all checks together."""


def plan_for(device: str, tests: Path, recordings: Path, seconds: float) -> Plan:
    """The checks for a GPU or for its stand-in.

    Raises:
        BackendError: no GPU, no driver, or no packages to drive it.

    """
    if device == HOST:
        return Plan(STAND_IN_NAME, True, STAND_IN_WAYS, tests, recordings, seconds)
    if device != GPU:
        raise SettingsError(f"--device is {device!r}, but it must be {GPU} or {HOST}")
    load_packages()
    return Plan(checked_gpu().name, False, GPU_WAYS, tests, recordings, seconds)


def checks(plan: Plan, subject: Subject) -> Iterator[Check]:
    """Make the checks one after the other, as long as there is time."""
    deadline = time.monotonic() + plan.seconds
    for name, work in _works(plan, subject):

        def in_time(work: Callable[[float], Finding] = work) -> Finding:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NotHereError(f"the {plan.seconds:.0f} s for all checks were up before it")
            return work(left)

        yield make(name, in_time)


def _works(plan: Plan, subject: Subject) -> Iterator[tuple[str, Callable[[float], Finding]]]:
    """Every check's name, and what makes it within so many seconds."""
    on_device = plan.tests / KERNEL_TESTS
    if plan.stand_in:
        kernels = Selection((on_device,), ("-k", "host_stand_in"))
    else:
        kernels = Selection((plan.tests,), ("-m", "gpu"))
    yield "kernels and device against numpy", lambda left: run_tests(kernels, left)
    timed = not plan.stand_in
    for way in plan.ways:
        yield f"the CPU's pictures, {way.name}", _of(way, partial(against_the_cpu, way, subject))
        yield f"recorded runs, {way.name}", _of(way, partial(against_recordings, way, plan.recordings))
        graphs = partial(graphs_against_launches, way, subject, timed=timed)
        yield f"graphs against plain launches, {way.name}", _of(way, graphs)
        whole = partial(image_against_steps, way, subject, timed=timed)
        yield f"a whole image as one graph, {way.name}", _of(way, whole)
        yield f"step latencies, {way.name}", _of(way, partial(step_latencies, way, subject, timed=timed))
    launches = Selection((on_device,), ("-m", "gpu", "-k", f"{SANITIZED_THREADS}-"))
    for tool in ("memcheck", "racecheck"):
        yield tool, partial(_sanitized, plan, tool, launches)


def _of(way: Way, work: Callable[[], Finding]) -> Callable[[float], Finding]:
    """A check of one way, where that can be gone."""

    def check(left: float) -> Finding:
        reason = way.missing()
        if reason:
            raise NotHereError(reason)
        return work()

    return check


def _sanitized(plan: Plan, tool: str, selection: Selection, left: float) -> Finding:
    if plan.stand_in:
        raise NotHereError("the stand-in launches nothing on a GPU")
    return sanitize(tool, find_sanitizer(), selection, left)


def subject_of(bundle: Bundle, folder: Path) -> Subject:
    """A copy of a bundle in ``folder``, with no more trees than are checked, so that engines are built soon.

    Those are the default tree, and the one that is recommended.
    """
    manifest = bundle.manifest
    tree = str(manifest.defaults.get("tree", manifest.default_tree))
    trees = {name: manifest.trees[name] for name in dict.fromkeys((manifest.default_tree, tree))}
    others = {draft_tree_graph(name) for name in manifest.trees if name not in trees}
    graphs = {name: spec for name, spec in manifest.graphs.items() if name not in others}
    recommended = {**manifest.defaults, "tree": tree}
    reduced = replace(manifest, trees=trees, graphs=graphs, defaults=recommended, device_defaults={})
    copied = Path(shutil.copytree(bundle.path, folder, ignore=shutil.ignore_patterns("*.engine")))
    prompts = tuple(manifest.examples[:REQUESTS])
    if not prompts:
        raise SettingsError(f"{bundle.path} has no example prompts; give a bundle that has")

    def models() -> "ModelSet":
        return _recipe_models(bundle)

    return Subject(Bundle(copied, reduced), models, prompts)


def _recipe_models(bundle: Bundle) -> "ModelSet":
    """The models of the recipe beside a bundle."""
    from vvs.benchmarks.baselines import recipe_models

    recipe = bundle.path.with_suffix(".toml")
    if not recipe.is_file():
        raise NotHereError(f"there is no recipe {recipe} beside the bundle to make the models from")
    return recipe_models(recipe, bundle)


def main(
    bundle: Annotated[Path, typer.Argument(help="Bundle to draw with.")] = Path("engines/demo"),
    out: Annotated[Path, typer.Option(help="Folder for <device>.json and <device>.md.")] = Path(
        "benchmarks/results/gpu"
    ),
    device: Annotated[
        str, typer.Option(help="gpu, or host: the same checks on a stand-in, which says nothing of a GPU.")
    ] = GPU,
    recordings: Annotated[Path, typer.Option(help="Folder of recorded runs.")] = RECORDINGS,
    tests: Annotated[Path, typer.Option(help="The repository's tests.")] = TESTS,
    minutes: Annotated[float, typer.Option(min=0, help="For all checks together.")] = MINUTES,
) -> None:
    """Make every check that needs a GPU and write a report. Exit 1 if one failed, 2 without a GPU."""
    console = Console()
    try:
        plan = plan_for(device, tests, recordings, 60 * minutes)
        opened = Bundle.open(bundle)
        with tempfile.TemporaryDirectory() as folder:
            subject = subject_of(opened, Path(folder) / bundle.name)
            made = []
            for check in checks(plan, subject):
                made.append(check)
                style = STYLES[check.status]
                console.print(
                    f"[{style}]{check.status:<8}[/{style}] {check.name}: {check.remark}", highlight=False
                )
    except VvsError as error:
        hint = (
            ""
            if not isinstance(error, BackendError)
            else f" (`--device {HOST}` tries the command itself out)"
        )
        Console(stderr=True).print(f"[red]error:[/red] {error}{hint}", highlight=False)
        raise typer.Exit(UNUSABLE) from error
    report = GpuReport(
        plan.device, plan.stand_in, environment(), bundle_identity(opened.manifest), tuple(made)
    )
    write_json(out / f"{report.file_name}.json", report.to_dict())
    write_text(out / f"{report.file_name}.md", report.page())
    console.print(f"report: {out / report.file_name}.json and .md")
    if report.failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
