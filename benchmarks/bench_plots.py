"""Plots of a benchmark report: what a mode costs, where its time goes, and what it costs in quality."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vvs.benchmarks.bench_report import PHASES, timed
from vvs.benchmarks.picture import new_picture, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = 10
"""That matplotlib names C0, C1, ..."""
OUR_MARKERS = "oD^v"


def draw_plots(report: Mapping[str, Any], out: Path, score: Mapping[str, Any] | None = None) -> list[Path]:
    """Draw the plots of a report into ``out``; with an ``eval.json``, quality against speed too.

    Raises:
        SettingsError: matplotlib is missing.

    """
    smallest = min(result["batch"] for result in report["results"])
    results = [result for result in report["results"] if result["batch"] == smallest]
    drawn = {"latency": _latency, "phases": _phases, "acceptance": _acceptance}
    paths = []
    for name, draw in drawn.items():
        figure = new_picture()
        draw(figure.subplots(), results)
        paths.append(save_picture(figure, out / f"{name}.png"))
    scored = _scored(results, score or {})
    if scored:
        figure = new_picture()
        _quality(figure.subplots(), scored)
        paths.append(save_picture(figure, out / "quality.png"))
    return paths


def _latency(axes: "Axes", results: Sequence[Mapping[str, Any]]) -> None:
    """Latency against step compression, with the intervals of the medians."""
    for result, style in _styled(results):
        p50 = result["latency_ms"]["p50"]
        spread = [[p50["value"] - p50["low"]], [p50["high"] - p50["value"]]]
        axes.errorbar(result["step_compression"], p50["value"], yerr=spread, linestyle="", **style)
    axes.set_xlabel("step compression (image tokens per target pass)")
    axes.set_ylabel("ms per call, median")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    _legend_beside(axes)


def _phases(axes: "Axes", results: Sequence[Mapping[str, Any]]) -> None:
    """Where the time of a picture goes."""
    shown = timed(results)
    labels = [result["label"] for result in shown]
    left = [0.0] * len(shown)
    for phase in PHASES:
        widths = [result["phase_ms"][phase] for result in shown]
        if not any(widths):
            continue
        axes.barh(labels, widths, left=left, label=phase)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("ms per picture")
    _legend_beside(axes)


def _acceptance(axes: "Axes", results: Sequence[Mapping[str, Any]]) -> None:
    """Share of verified steps that accept at least so many drafted tokens."""
    deepest = 0
    for result, style in _styled(results):
        shares = result["accepted_at_least"]["verify"]
        if shares:
            axes.plot(range(1, len(shares) + 1), shares, **style)
            deepest = max(deepest, len(shares))
    axes.set_xlabel("depth in the draft tree")
    axes.set_ylabel("share of verified steps that accept it")
    axes.set_xticks(range(1, deepest + 1))
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    if axes.lines:
        _legend_beside(axes)


def _styled(results: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Every result with a colour, a marker and a label of its own; squares are not this toolkit's."""
    for index, result in enumerate(results):
        marker = "s" if result["foreign"] else OUR_MARKERS[index // COLOURS % len(OUR_MARKERS)]
        yield result, {"color": f"C{index % COLOURS}", "marker": marker, "label": result["label"]}


def _legend_beside(axes: "Axes") -> None:
    """Put the legend where it covers nothing."""
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))


def _scored(results: Sequence[Mapping[str, Any]], score: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Label, speed-up and score of our modes that have both: those of the same settings."""
    by_config = {str(s["config"]): s["score"]["value"] for s in score.get("contenders", {}).values()}
    return [
        (result["label"], result["ratio"]["value"], 100 * by_config[str(result["config"])])
        for result in results
        if str(result["config"]) in by_config and not result["foreign"]
    ]


def _quality(axes: "Axes", scored: Sequence[tuple[str, float, float]]) -> None:
    """Score against speed-up, and the front of those that nothing beats in both."""
    front = sorted(
        (speed, score)
        for _, speed, score in scored
        if not any(s >= speed and q >= score and (s, q) != (speed, score) for _, s, q in scored)
    )
    axes.plot(*zip(*front, strict=True), color="0.6", zorder=1, label="nothing is better in both")
    for label, speed, score in scored:
        axes.scatter(speed, score, zorder=2)
        axes.annotate(label, (speed, score), fontsize="small", xytext=(4, 4), textcoords="offset points")
    axes.set_xlabel("speed-up")
    axes.set_ylabel("score, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
