"""The report of an evaluation: tables, sentences, plain data, Markdown, a plot and a sheet of pictures."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vvs.acceptance import Exact, Lantern, LanternPlusPlus
from vvs.benchmarks.bootstrap import Estimate
from vvs.benchmarks.environment import bundle_identity, environment
from vvs.benchmarks.evaluation import Evaluation, Marks, ModeQuality
from vvs.benchmarks.frechet import FrechetDistance
from vvs.benchmarks.picture import new_picture, save_picture
from vvs.benchmarks.published import PUBLISHED, PUBLISHED_NOTE
from vvs.benchmarks.report import Rows, markdown, write_json, write_text
from vvs.config import GenerationConfig
from vvs.manifest import Manifest
from vvs.runtime.images import contact_sheet, save_sheet
from vvs.skipping import SKIP_POLICIES, Never, SkipPolicy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA = 1
SHOWN_PROMPTS = 8
PERCENT = 100.0
ABSENT = "-"


def quality_rows(evaluation: Evaluation) -> Rows:
    """A line for each mode, and one for real pictures."""
    baseline = evaluation.modes[0].contender.label
    rows = []
    for mode in evaluation.modes:
        costs = {"step compression": f"{mode.compression.value:.2f}", "accepted": f"{mode.accepted:.2f}"}
        gap = {f"points over {baseline}": mode.gap.shown("+.1f", PERCENT)}
        rows.append({"mode": mode.contender.label} | costs | _cells(mode.marks, gap))
    if evaluation.perfect is not None:
        nothing = {"step compression": ABSENT, "accepted": ABSENT}
        gap = {f"points over {baseline}": ABSENT}
        rows.append({"mode": "other real photographs"} | nothing | _cells(evaluation.perfect, gap))
    return rows


def _cells(marks: Marks, gap: dict[str, str]) -> dict[str, str]:
    return {
        "score, %": marks.score.shown(".1f", PERCENT),
        **gap,
        "colour, %": f"{PERCENT * marks.colour:.1f}",
        "garment, %": f"{PERCENT * marks.garment:.1f}",
        "unseen pairs, %": ABSENT if math.isnan(marks.unseen) else f"{PERCENT * marks.unseen:.1f}",
        "Fréchet distance": frechet_cell(marks.frechet),
        "precision": f"{marks.neighbourhoods.precision:.3f}",
        "recall": f"{marks.neighbourhoods.recall:.3f}",
    }


def frechet_cell(distance: FrechetDistance) -> str:
    """A distance and, if there is one, its interval."""
    return f"{distance.value:.2f}" if distance.interval is None else distance.interval.shown(".2f")


def speed_quality_rows(evaluation: Evaluation) -> Rows:
    """The table of the paper: step compression against distance per skip interval and delta."""
    model = f"demo, n = {evaluation.settings.count}"
    return [
        {"model": model, "mode": mode.contender.label.split()[0]}
        | _varied(mode.contender.config)
        | _outcome(mode.compression.value, frechet_cell(mode.marks.frechet))
        for mode in evaluation.modes
    ]


def published_rows() -> Rows:
    """The paper's own rows, in the same form."""
    return [
        {
            "model": row.model,
            "mode": row.mode,
            "tree": ABSENT,
            "skipping": ABSENT if row.interval is None else f"uniform {row.interval}",
            "delta": ABSENT if row.delta is None else f"{row.delta:g}",
        }
        | _outcome(row.step_compression, f"{row.fid:.2f}")
        for row in PUBLISHED
    ]


def _outcome(compression: float, distance: str) -> dict[str, str]:
    return {"step compression": f"{compression:.2f}", "Fréchet distance": distance}


def _varied(config: GenerationConfig) -> dict[str, str]:
    """The settings that the paper's table varies, and the tree, which ours varies too."""
    match config.acceptance:
        case Lantern(delta=delta):
            relaxed = f"{delta:g}"
        case LanternPlusPlus(lam=lam):
            relaxed = f"lambda {lam:g}"
        case Exact():
            relaxed = ABSENT
        case other:
            relaxed = type(other).__name__
    tree = ABSENT if config.tree is None else str(config.tree)
    return {"tree": tree, "skipping": _skipping(config.skipping), "delta": relaxed}


def _skipping(policy: SkipPolicy) -> str:
    """A policy by its name and the values of its settings, such as ``uniform 4``."""
    if policy == Never():
        return ABSENT
    name, _, settings = SKIP_POLICIES.describe(policy).partition(":")
    return " ".join([name, *(setting.partition("=")[2] for setting in settings.split(",") if setting)])


def sentences(evaluation: Evaluation) -> list[str]:
    """What a reader must know about the figures."""
    settings, F = evaluation.settings, evaluation.features
    said = [
        f"n = {settings.count} pictures per mode, the same prompts and seeds in all; in brackets the 95% "
        "interval of a bootstrap over the pictures",
        f"Fréchet distance, precision and recall are of the judge's {F} features against as many real "
        "photographs; distances of another n or of other features cannot be compared with these",
    ]
    bias = evaluation.modes[0].marks.frechet.bias
    if bias is not None:
        said.append(f"about {bias:.2f} of the baseline's distance is the small-sample bias of this n")
    if settings.count <= F:
        said.append(
            f"{settings.count} pictures are too few for a covariance of {F} features: "
            "the distances say little"
        )
    return said


def report_data(evaluation: Evaluation, manifest: Manifest, backend: str) -> dict[str, Any]:
    """Everything, as plain data."""
    return {
        "schema": SCHEMA,
        "environment": environment(),
        "bundle": bundle_identity(manifest),
        "backend": backend,
        "settings": vars(evaluation.settings),
        "features": evaluation.features,
        "contenders": {mode.contender.label: _mode_data(mode) for mode in evaluation.modes},
        "real_photographs": None if evaluation.perfect is None else _marks_data(evaluation.perfect),
        "published": [row._asdict() for row in PUBLISHED],
        "notes": [*sentences(evaluation), PUBLISHED_NOTE],
    }


def _mode_data(mode: ModeQuality) -> dict[str, Any]:
    return {
        "config": mode.contender.config.describe(),
        "step_compression": vars(mode.compression),
        "accepted": mode.accepted,
        "points_over_baseline": vars(mode.gap),
        **_marks_data(mode.marks),
    }


def _marks_data(marks: Marks) -> dict[str, Any]:
    return {
        "score": vars(marks.score),
        "colour": marks.colour,
        "garment": marks.garment,
        "unseen_pairs": None if math.isnan(marks.unseen) else marks.unseen,
        "frechet_distance": frechet_data(marks.frechet),
        **marks.neighbourhoods._asdict(),
    }


def frechet_data(distance: FrechetDistance) -> dict[str, Any]:
    """A distance as plain data; what was not asked for is null."""
    interval = distance.interval
    return {
        "value": distance.value,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "bias": distance.bias,
    }


def write_report(evaluation: Evaluation, manifest: Manifest, backend: str, out: Path) -> list[Path]:
    """Write ``eval.json``, ``eval.md`` and ``pictures.png``; returns the files."""
    write_json(out / "eval.json", report_data(evaluation, manifest, backend))
    said = "".join(f"{sentence}.\n\n" for sentence in sentences(evaluation))
    tables = (quality_rows(evaluation), [*speed_quality_rows(evaluation), *published_rows()])
    text = f"{markdown(tables[0])}\n{said}{markdown(tables[1])}\n{PUBLISHED_NOTE}.\n"
    write_text(out / "eval.md", text)
    shown = min(SHOWN_PROMPTS, evaluation.settings.count)
    cells = [[mode.pixels[i] for mode in evaluation.modes] for i in range(shown)]
    labels = [mode.contender.label for mode in evaluation.modes]
    save_sheet(out / "pictures.png", contact_sheet(cells, evaluation.prompts[:shown], labels))
    return [out / "eval.json", out / "eval.md", out / "pictures.png"]


def draw_plot(evaluation: Evaluation, path: Path) -> Path:
    """Draw distance and score against step compression, with intervals.

    Raises:
        SettingsError: matplotlib is missing.

    """
    figure = new_picture((12.0, 5.0))
    distances, scores = figure.subplots(1, 2)
    for index, mode in enumerate(evaluation.modes):
        marks, x = mode.marks, mode.compression.value
        interval = marks.frechet.interval or Estimate(*[marks.frechet.value] * 3)
        style = {"color": f"C{index % 10}", "marker": "o^sD"[index // 10 % 4], "label": mode.contender.label}
        _point(distances, x, interval, 1, style)
        _point(scores, x, marks.score, PERCENT, style)
    distances.set_ylabel(f"Fréchet distance, n = {evaluation.settings.count} (less is better)")
    scores.set_ylabel("score, % (more is better)")
    for axes in (distances, scores):
        axes.set_xlabel("step compression (image tokens per target pass)")
        axes.grid(alpha=0.3)
    handles, labels = distances.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    return save_picture(figure, path)


def _point(axes: "Axes", x: float, figure: Estimate, unit: float, style: dict[str, Any]) -> None:
    reach = [[unit * (figure.value - figure.low)], [unit * (figure.high - figure.value)]]
    axes.errorbar(x, unit * figure.value, yerr=reach, linestyle="", capsize=3, **style)
