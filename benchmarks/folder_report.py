"""The report of a folder evaluation: a table, plain data and Markdown."""

from pathlib import Path
from typing import Any

from vvs.benchmarks.bootstrap import Estimate
from vvs.benchmarks.environment import environment, installed
from vvs.benchmarks.evaluation_report import ABSENT, frechet_cell, frechet_data
from vvs.benchmarks.folder_evaluation import FolderEvaluation, FolderQuality, sentences
from vvs.benchmarks.report import Rows, markdown, write_json, write_text
from vvs.runtime.bundle import sha256_of

SCHEMA = 1
PACKAGES = ("torch", "torchvision", "torch-fidelity", "open_clip_torch")


def folder_rows(evaluation: FolderEvaluation) -> Rows:
    """A line for each folder."""
    return [
        {
            "folder": folder.folder.name,
            "pictures": str(folder.pictures),
            "FID": ABSENT if folder.fid is None else frechet_cell(folder.fid),
            "precision": ABSENT
            if folder.neighbourhoods is None
            else f"{folder.neighbourhoods.precision:.3f}",
            "recall": ABSENT if folder.neighbourhoods is None else f"{folder.neighbourhoods.recall:.3f}",
            "CLIP score": _cell(folder.clip),
            "HPSv2": _cell(folder.hps),
        }
        for folder in evaluation.folders
    ]


def _cell(figure: Estimate | None) -> str:
    return ABSENT if figure is None else figure.shown(".2f")


def folder_data(evaluation: FolderEvaluation) -> dict[str, Any]:
    """Everything, as plain data."""
    settings = evaluation.settings
    weights = {"inception": settings.inception, "clip": settings.clip, "hps": settings.hps}
    return {
        "schema": SCHEMA,
        "environment": environment(),
        "packages": {name: installed(name) for name in PACKAGES},
        "reference": None
        if settings.reference is None
        else {"folder": str(settings.reference), "pictures": evaluation.reference_pictures},
        "weights": {name: _weights(path) for name, path in weights.items() if path is not None},
        "resamples": settings.resamples,
        "folders": [_folder(folder) for folder in evaluation.folders],
        "not_measured": {metric.value: sentence for metric, sentence in evaluation.missing.items()},
        "notes": sentences(evaluation),
    }


def _weights(path: Path) -> dict[str, str | None]:
    return {"name": path.name, "sha256": sha256_of(path) if path.is_file() else None}


def _folder(folder: FolderQuality) -> dict[str, Any]:
    near = folder.neighbourhoods
    return {
        "folder": str(folder.folder),
        "pictures": folder.pictures,
        "fid": None if folder.fid is None else frechet_data(folder.fid),
        "precision": None if near is None else near.precision,
        "recall": None if near is None else near.recall,
        "clip_score": None if folder.clip is None else vars(folder.clip),
        "hps_v2": None if folder.hps is None else vars(folder.hps),
    }


def write_folder_report(evaluation: FolderEvaluation, out: Path) -> list[Path]:
    """Write ``eval.json`` and ``eval.md``; returns the files."""
    write_json(out / "eval.json", folder_data(evaluation))
    said = "".join(f"\n{sentence}.\n" for sentence in sentences(evaluation))
    write_text(out / "eval.md", markdown(folder_rows(evaluation)) + said)
    return [out / "eval.json", out / "eval.md"]
