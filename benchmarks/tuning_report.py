"""The report of a tuning: tables, plain data and the curve."""

from pathlib import Path
from typing import Any

from vvs.benchmarks.picture import new_picture, save_picture
from vvs.benchmarks.report import Rows, write_json
from vvs.benchmarks.tuning import Candidate, Finalist, Tuning, defaults_of


def cost_rows(tuning: Tuning) -> Rows:
    """Milliseconds of every kind of step, a line for each tree."""
    return [
        {"tree": tree} | {f"{kind}, ms": f"{1000 * seconds:.2f}" for kind, seconds in costs.items()}
        for tree, costs in tuning.costs.items()
    ]


def finalist_rows(tuning: Tuning) -> Rows:
    """What was timed, by rising latency relative to AR's."""
    return [
        {
            "settings": finalist.label + (" (chosen)" if finalist is tuning.chosen else ""),
            "ms per image": f"{finalist.milliseconds:.1f}",
            "AR takes": f"{1 / finalist.relative:.2f}x",
            "predicted": f"{finalist.candidate.predicted:.1f}",
            "step compression": f"{finalist.candidate.compression:.2f}",
            "accepted at least 1, 2, ...": " ".join(f"{share:.2f}" for share in finalist.candidate.accepted),
            "quality": "-" if finalist.quality is None else f"{finalist.quality:.2f}",
        }
        for finalist in tuning.finalists
    ]


def write_report(tuning: Tuning, device: str, out: Path) -> Path:
    """Write everything as JSON; returns the file."""
    path = out / "tuning.json"
    write_json(
        path,
        {
            "schema": 2,
            "device": device,
            "costs_seconds": {tree: dict(costs) for tree, costs in tuning.costs.items()},
            "candidates": [_candidate(one) for one in tuning.candidates],
            "finalists": [_finalist(one) for one in tuning.finalists],
            "ar_quality": tuning.baseline_quality,
            "chosen": tuning.chosen.label,
            "defaults": defaults_of(tuning.chosen),
        },
    )
    return path


def _candidate(one: Candidate) -> dict[str, Any]:
    return {
        "settings": one.contender.label,
        "config": one.contender.config.describe(),
        "step_compression": one.compression,
        "accepted_at_least": list(one.accepted),
        "predicted_ms": one.predicted,
    }


def _finalist(one: Finalist) -> dict[str, Any]:
    return {
        "settings": one.label,
        "milliseconds": one.milliseconds,
        "relative_to_ar": one.relative,
        "quality": one.quality,
    }


def draw_curve(tuning: Tuning, path: Path) -> Path:
    """Draw predicted latency against step compression, a colour for each tree, finalists as measured.

    Raises:
        SettingsError: matplotlib is missing.

    """
    figure = new_picture()
    axes = figure.subplots()
    by_tree: dict[str, list[Candidate]] = {}
    for one in tuning.candidates:
        by_tree.setdefault(one.contender.config.tree or "AR", []).append(one)
    for tree, group in by_tree.items():
        group.sort(key=lambda one: one.compression)
        points = [(one.compression, one.predicted) for one in group]
        axes.plot(*zip(*points, strict=True), marker=".", label=f"{tree}, predicted")
    timed = [(one.candidate.compression, one.milliseconds) for one in tuning.finalists]
    axes.scatter(*zip(*timed, strict=True), marker="o", facecolors="none", edgecolors="k", label="measured")
    best = tuning.chosen
    axes.annotate(f"chosen: {best.label}", (best.candidate.compression, best.milliseconds), fontsize="small",
                  xytext=(0, -18), textcoords="offset points", ha="center")  # fmt: skip
    axes.set_xlabel("step compression (image tokens per target pass)")
    axes.set_ylabel("ms per image")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return save_picture(figure, path)
