"""Bench report: what a benchmark found, as tables, sentences and files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vvs.benchmarks.report import Rows, markdown, write_json, write_text

Result = Mapping[str, Any]
"""One mode at one batch size, as :meth:`vvs.benchmarks.timing.Timed.figures` writes it."""
PHASES = ("prefill", "draft", "target", "accept", "commit", "device", "host", "decode")
MEBI = 1 << 20
NOTHING = "-"


def speed_rows(report: dict[str, Any]) -> Rows:
    """How fast every mode was; ``ms`` are those of a call, in which every picture of the batch is drawn."""
    return [_names(result) | _speed(result) for result in report["results"]]


def step_rows(report: dict[str, Any]) -> Rows:
    """What the steps of every mode were."""
    return [_names(result) | _steps(result) for result in report["results"]]


def phase_rows(report: dict[str, Any]) -> Rows:
    """Milliseconds of a picture by phase, of what times its phases; those of a batch wait for one another."""
    shown = timed(report["results"])
    used = [phase for phase in PHASES if any(result["phase_ms"][phase] for result in shown)]
    return [_names(result) | _phases(result, used) for result in shown]


def depth_rows(report: dict[str, Any]) -> Rows:
    """Share of the verified steps that accept at least so many drafted tokens, of what drafts."""
    shares = [(result, result["accepted_at_least"]["verify"]) for result in report["results"]]
    deepest = max((len(at_least) for _, at_least in shares), default=0)
    return [
        _names(result)
        | {f">= {depth}": _share(at_least[depth - 1 : depth]) for depth in range(1, deepest + 1)}
        for result, at_least in shares
        if _drafts(result)
    ]


def tables(report: dict[str, Any]) -> list[tuple[str, Rows]]:
    """All tables that have rows, with their titles."""
    titled = (
        ("Speed", speed_rows(report)),
        ("Steps", step_rows(report)),
        ("Where a picture's time goes, ms", phase_rows(report)),
        ("Verified steps that accept at least so many drafted tokens", depth_rows(report)),
    )
    return [(title, rows) for title, rows in titled if rows]


def timed(results: Iterable[Result]) -> list[Result]:
    """Results whose steps were timed; foreign loops are timed from outside only."""
    return [result for result in results if result["device_ms"] is not None]


def sentences(report: dict[str, Any]) -> list[str]:
    """What the figures mean: where drafting does not pay here, and what it is to other people's loops."""
    baseline = report["settings"]["baseline"]
    said = list(report["notes"])
    for batch in dict.fromkeys(result["batch"] for result in report["results"]):
        results = [result for result in report["results"] if result["batch"] == batch]
        drafting = [r for r in results if not r["foreign"] and _drafts(r) and r["label"] != baseline]
        said += _verdicts(drafting, baseline, batch)
        said += [_against(r, results) for r in results if r["foreign"]]
    return [sentence for sentence in said if sentence]


def write_report(report: dict[str, Any], out: Path) -> None:
    """Write ``bench.json`` and ``bench.md`` into the folder ``out``."""
    where = report["environment"]
    lines = [
        f"# {report['bundle']['name']} ({report['bundle']['precision']})",
        "",
        f"{', '.join([where['processor'], *where['gpus']])}, {where['threads']} threads, "
        f"backend {report['settings']['backend']}; "
        f"vvs {where['vvs']}, revision {where['revision']}, onnxruntime {where['packages']['onnxruntime']}. "
        f"Speed-ups are medians of call-by-call ratios to {report['settings']['baseline']}, in one run. "
        "Accepted tokens are the drafted ones that a step adds, the root not counted. "
        "Memory is that of the whole process.",
    ]
    for title, rows in tables(report):
        lines += ["", f"## {title}", "", markdown(rows).rstrip()]
    lines += ["", *(f"- {sentence}" for sentence in sentences(report))]
    write_json(out / "bench.json", report)
    write_text(out / "bench.md", "\n".join(lines).rstrip() + "\n")


def _names(result: Result) -> dict[str, str]:
    return {"mode": result["label"], "batch": str(result["batch"])}


def _speed(result: Result) -> dict[str, str]:
    latency, ratio, peak = result["latency_ms"], result["ratio"], result["peak_bytes"]
    p50 = latency["p50"]
    return {
        "ms p50 (95%)": f"{p50['value']:.0f} ({p50['low']:.0f}..{p50['high']:.0f})",
        "p90": f"{latency['p90']['value']:.0f}",
        "p99": f"{latency['p99']['value']:.0f}",
        "speed-up (95%)": f"{ratio['value']:.2f} ({ratio['low']:.2f}..{ratio['high']:.2f})",
        "images/s": f"{result['images_per_second']:.2f}",
        "tokens/s": f"{result['tokens_per_second']:.0f}",
        "peak MiB": NOTHING if peak is None else f"{peak / MEBI:.0f}",
    }


def _steps(result: Result) -> dict[str, str]:
    return {
        "passes": f"{result['forward_passes']:.1f}",
        "compression": f"{result['step_compression']:.2f}",
        "accepted, verified": f"{result['accepted_verify']:.2f}",
        "accepted, skipped": f"{result['accepted_skip']:.2f}",
        "steps skipped": f"{100 * result['skip_share']:.0f}%",
    }


def _phases(result: Result, used: Sequence[str]) -> dict[str, str]:
    inside, outside = result["device_ms"], result["outside_ms"]
    shown = {phase: f"{result['phase_ms'][phase]:.1f}" for phase in used}
    share = f"{100 * outside / (inside + outside):.0f}%" if inside + outside else NOTHING
    return shown | {"steps, in engines": f"{inside:.1f}", "steps, outside": f"{outside:.1f} ({share})"}


def _share(at_least: Sequence[float]) -> str:
    return f"{100 * at_least[0]:.0f}%" if at_least else NOTHING


def _drafts(result: Result) -> bool:
    return bool(result["config"].get("tree"))


def _verdicts(drafting: Sequence[Result], baseline: str, batch: int) -> list[str]:
    """A sentence for every mode that is slower than the baseline, and one if none is surely faster."""
    said = [
        f"{r['label']} does not pay here at batch {batch}: "
        f"it takes {1 / r['ratio']['value']:.2f} times as long as {baseline}."
        for r in drafting
        if r["ratio"]["high"] < 1
    ]
    if drafting and not any(r["ratio"]["low"] > 1 for r in drafting):
        said.append(
            f"Speculation does not pay on this device with this bundle at batch {batch}: "
            f"nothing that drafts is surely faster than {baseline}."
        )
    return said


def _against(foreign: Result, results: Sequence[Result]) -> str:
    """Compare a foreign loop to ours of the same settings; empty if that was not measured."""
    ours = [r for r in results if not r["foreign"] and r["config"] == foreign["config"]]
    if not ours:
        return ""
    times = foreign["latency_ms"]["p50"]["value"] / ours[0]["latency_ms"]["p50"]["value"]
    return (
        f"{foreign['label']} takes {times:.2f} times as long as {ours[0]['label']}, "
        f"with the same settings at batch {foreign['batch']}."
    )
