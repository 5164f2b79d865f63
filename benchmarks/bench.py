"""Bench: modes side by side on this machine, measured; :mod:`vvs.benchmarks.bench_report` shows them.

Accepted length has the one definition of :mod:`vvs.statistics`. Device time is the time inside graph
executions during steps; everything else is wall-clock time of whole calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vvs.benchmarks.contender import Contender
from vvs.benchmarks.environment import bundle_identity, environment
from vvs.benchmarks.timing import Runner, TimingSettings, measure
from vvs.errors import SettingsError
from vvs.observing import marked
from vvs.runtime.backends import DEFAULT_BACKEND
from vvs.runtime.pipeline import Pipeline
from vvs.runtime.tracing import traced
from vvs.statistics import Statistics

SCHEMA = 1
SWEEP = (
    "ar",
    "eagle",
    "lantern",
    "lantern++",
    "vvs",
    "vvs policy=uniform:2",
    "vvs policy=uniform:3",
    "vvs policy=uniform:5",
    "vvs policy=dynamic:0.7",
    "vvs policy=dynamic:0.4",
)
"""What is measured unless something else is asked for; the first is the baseline."""


@dataclass(frozen=True)
class PipelineRunner:
    """A contender on a pipeline."""

    contender: Contender
    pipeline: Pipeline

    @property
    def label(self) -> str:
        """The contender's line."""
        return self.contender.label

    @property
    def config(self) -> dict[str, Any]:
        """Every setup."""
        return self.contender.config.describe()

    @property
    def foreign(self) -> bool:
        """No."""
        return False

    def run(self, prompts: Sequence[str], seeds: Sequence[int]) -> tuple[Statistics, ...]:
        """Draw one picture for each prompt in one batch."""
        done = self.pipeline.generate(prompts, self.contender.config, seeds, batch=len(prompts))
        return done.statistics


@dataclass(frozen=True)
class Setup:
    """What a report says about a measurement besides its figures."""

    backend: str = DEFAULT_BACKEND
    threads: int | None = None
    """Threads of a graph; None is every CPU."""
    notes: tuple[str, ...] = ()
    """Sentences, such as about what was left out."""


def bench(
    runners: Sequence[Runner],
    pipeline: Pipeline,
    prompts: Sequence[str],
    batches: Sequence[int],
    settings: TimingSettings,
    setup: Setup,
    advance: Callable[[int, float], None] = lambda batch, share: None,
) -> dict[str, Any]:
    """Measure all runners at all batch sizes; the report as plain data.

    Raises:
        SettingsError: nothing to run, no prompts, or a batch that the bundle does not take.

    """
    manifest = pipeline.bundle.manifest
    if not runners or not prompts:
        raise SettingsError("there is nothing to measure: give at least one mode and one prompt")
    for batch in batches:
        if not 1 <= batch <= manifest.max_requests:
            raise SettingsError(f"batch is {batch}, but this bundle takes 1..{manifest.max_requests}")
    results = []
    for batch in batches:
        timed = measure(runners, prompts, batch, settings, lambda share, b=batch: advance(b, share))  # type: ignore[misc]
        results += [one.figures(timed[0]) for one in timed]
    return {
        "schema": SCHEMA,
        "bundle": bundle_identity(manifest),
        "environment": environment(setup.threads),
        "settings": {
            **vars(settings),
            "prompts": list(prompts),
            "baseline": runners[0].label,
            "backend": setup.backend,
        },
        "notes": list(setup.notes),
        "results": results,
    }


def trace_one(runners: Sequence[Runner], prompt: str, seed: int, path: Path) -> None:
    """Write one trace in which every runner draws one picture, unmeasured, inside a span of its label."""
    with traced(path):
        for runner in runners:
            with marked(runner.label):
                runner.run([prompt], [seed])
