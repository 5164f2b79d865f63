"""The benchmark: modes side by side on this machine, as a table, JSON, Markdown and plots.

Accepted length has the one definition of :mod:`vvs.statistics`. Device time is the time inside graph
executions during steps; everything else is wall-clock time of whole calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vvs.benchmarks.contender import Contender
from vvs.benchmarks.environment import environment
from vvs.benchmarks.report import Rows, markdown, write_json, write_text
from vvs.benchmarks.timing import Runner, TimingSettings, measure
from vvs.errors import SettingsError
from vvs.runtime.pipeline import Pipeline
from vvs.statistics import Statistics

SCHEMA = 1
SWEEP = (
    "ar",
    "eagle",
    "lantern",
    "lantern++",
    "vvs policy=uniform:2",
    "vvs policy=uniform:3",
    "vvs policy=uniform:5",
    "vvs policy=dynamic:0.7",
    "vvs policy=dynamic:0.4",
)
"""What is measured unless something else is asked for; the first is the baseline."""
MEBI = 1 << 20


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
        """Every setting."""
        return self.contender.config.describe()

    def run(self, prompts: Sequence[str], seeds: Sequence[int]) -> tuple[Statistics, ...]:
        """Draw one picture for each prompt in one batch."""
        done = self.pipeline.generate(prompts, self.contender.config, seeds, batch=len(prompts))
        return done.statistics


def bench(
    runners: Sequence[Runner],
    pipeline: Pipeline,
    prompts: Sequence[str],
    batches: Sequence[int],
    settings: TimingSettings,
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
        "bundle": {"name": manifest.name, "source": manifest.source, "precision": manifest.precision},
        "environment": environment(),
        "settings": {**vars(settings), "prompts": list(prompts), "baseline": runners[0].label},
        "results": results,
    }


def rows(report: dict[str, Any]) -> Rows:
    """The table of a report."""
    return [_row(result) for result in report["results"]]


def _row(result: dict[str, Any]) -> dict[str, str]:
    p50, ratio = result["latency_ms"]["p50"], result["ratio"]
    peak = result["peak_bytes"]
    outside = result["outside_ms"]
    inside = result["device_ms"]
    return {
        "mode": result["label"],
        "batch": str(result["batch"]),
        "ms p50 (95%)": f"{p50['value']:.0f} ({p50['low']:.0f}..{p50['high']:.0f})",
        "p90": f"{result['latency_ms']['p90']['value']:.0f}",
        "p99": f"{result['latency_ms']['p99']['value']:.0f}",
        "speed-up (95%)": f"{ratio['value']:.2f} ({ratio['low']:.2f}..{ratio['high']:.2f})",
        "images/s": f"{result['images_per_second']:.2f}",
        "tokens/s": f"{result['tokens_per_second']:.0f}",
        "passes": f"{result['forward_passes']:.1f}",
        "compression": f"{result['step_compression']:.2f}",
        "accepted verify / skip": f"{result['accepted_verify']:.2f} / {result['accepted_skip']:.2f}",
        "skipped": f"{100 * result['skip_share']:.0f}%",
        "outside engines": "-" if outside is None else f"{100 * outside / (inside + outside):.0f}%",
        "peak MiB": "-" if peak is None else f"{peak / MEBI:.0f}",
    }


def verdicts(report: dict[str, Any]) -> list[str]:
    """A sentence for every mode that does not pay on this machine, and one if none does."""
    baseline = report["settings"]["baseline"]
    others = [r for r in report["results"] if r["label"] != baseline]
    slower = [r for r in others if r["ratio"]["high"] < 1]
    sentences = [
        f"{r['label']} does not pay here at batch {r['batch']}: "
        f"it takes {1 / r['ratio']['value']:.2f} times as long as {baseline}."
        for r in slower
    ]
    if others and len(slower) == len(others):
        sentences.append(
            f"Speculation does not pay on this device with this bundle: nothing is faster than {baseline}."
        )
    return sentences


def write_report(report: dict[str, Any], out: Path) -> None:
    """Write ``bench.json`` and ``bench.md`` into the folder ``out``."""
    where = report["environment"]
    lines = [
        f"# {report['bundle']['name']} ({report['bundle']['precision']})",
        "",
        f"{where['processor']}, {where['threads']} threads; "
        f"vvs {where['vvs']}, revision {where['revision']}, onnxruntime {where['packages']['onnxruntime']}. "
        f"Speed-ups are medians of call-by-call ratios to {report['settings']['baseline']}, in one run.",
        "",
        markdown(rows(report)),
        *(f"- {sentence}" for sentence in verdicts(report)),
    ]
    write_json(out / "bench.json", report)
    write_text(out / "bench.md", "\n".join(lines).rstrip() + "\n")
