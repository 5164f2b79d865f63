"""What changed between two benchmark reports, and what became slower beyond the noise they measured."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vvs.benchmarks.bench import SCHEMA
from vvs.benchmarks.bootstrap import Estimate
from vvs.benchmarks.report import Rows
from vvs.errors import SettingsError

IDENTITY = ("processor", "threads", "gpus", "driver", "packages")
"""Of the environment: what should be the same for two reports to be comparable."""


@dataclass(frozen=True)
class Change:
    """One mode at one batch size, in both reports."""

    label: str
    batch: int
    before: Estimate
    after: Estimate
    compression_before: float
    compression_after: float

    @property
    def regressed(self) -> bool:
        """Slower, and the intervals of the two medians do not meet."""
        return self.after.value > self.before.value and not self.after.overlaps(self.before)

    @property
    def improved(self) -> bool:
        """Faster, and the intervals of the two medians do not meet."""
        return self.after.value < self.before.value and not self.after.overlaps(self.before)

    @property
    def verdict(self) -> str:
        """In a word."""
        return "slower" if self.regressed else "faster" if self.improved else "the same"


def load_report(path: Path) -> dict[str, Any]:
    """Read a ``bench.json``.

    Raises:
        SettingsError: it is missing, no report, or of another schema.

    """
    try:
        report = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise SettingsError(f"there is no report at {path}") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SettingsError(f"{path} is no benchmark report: {error}") from error
    if not isinstance(report, dict) or "results" not in report:
        raise SettingsError(f"{path} is no benchmark report: it has no results")
    if report.get("schema") != SCHEMA:
        raise SettingsError(f"{path} has schema {report.get('schema')}, but this version reads {SCHEMA}")
    return report


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Every mode and batch size that both reports have.

    Raises:
        SettingsError: there is none.

    """
    earlier = {(r["label"], r["batch"]): r for r in before["results"]}
    found = [
        Change(
            result["label"],
            result["batch"],
            Estimate(**earlier[key]["latency_ms"]["p50"]),
            Estimate(**result["latency_ms"]["p50"]),
            earlier[key]["step_compression"],
            result["step_compression"],
        )
        for result in after["results"]
        if (key := (result["label"], result["batch"])) in earlier
    ]
    if not found:
        raise SettingsError("the two reports have no mode at the same batch size in common")
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Sentences about what else differs, so that a change may not be the code's."""
    sentences = [
        f"{name} differ: {before['environment'].get(name)} before, {after['environment'].get(name)} after"
        for name in IDENTITY
        if before["environment"].get(name) != after["environment"].get(name)
    ]
    if before["bundle"] != after["bundle"]:
        sentences.append(f"the bundles differ: {before['bundle']} before, {after['bundle']} after")
    return sentences


def change_rows(found: list[Change]) -> Rows:
    """The table of changes."""
    return [
        {
            "mode": change.label,
            "batch": str(change.batch),
            "before, ms p50 (95%)": _shown(change.before),
            "after, ms p50 (95%)": _shown(change.after),
            "time": f"{100 * (change.after.value / change.before.value - 1):+.1f}%",
            "compression": f"{change.compression_before:.2f} -> {change.compression_after:.2f}",
            "verdict": change.verdict,
        }
        for change in found
    ]


def _shown(estimate: Estimate) -> str:
    return f"{estimate.value:.0f} ({estimate.low:.0f}..{estimate.high:.0f})"
