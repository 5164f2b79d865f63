"""GpuReport: what the checks on a GPU came to, as plain data and as a page. Knows no GPU."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from vvs.benchmarks.report import markdown
from vvs.errors import VvsError

SCHEMA = 1
STAND_IN = (
    "**This is no GPU.** The checks ran on a stand-in that computes on the CPU: they show that the checks "
    "themselves work. Nothing was timed."
)


class NotHereError(VvsError):
    """Why a check cannot be made on this machine."""


class Status(StrEnum):
    """How a check went."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Finding(NamedTuple):
    """What a check found."""

    passed: bool
    remark: str
    """One sentence."""
    figures: Mapping[str, Any] = {}
    """Plain data."""


@dataclass(frozen=True)
class Check:
    """One check that was made, or could not be."""

    name: str
    status: Status
    remark: str
    seconds: float
    """Wall time of the check."""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "status": str(self.status),
            "remark": self.remark,
            "seconds": round(self.seconds, 1),
            "figures": dict(self.figures),
        }


def make(name: str, work: Callable[[], Finding]) -> Check:
    """Make a check. Whatever goes wrong in it is its failure, so that the others are made all the same."""
    started = time.perf_counter()
    try:
        finding = work()
        status = Status.PASSED if finding.passed else Status.FAILED
    except NotHereError as error:
        finding, status = Finding(False, str(error)), Status.SKIPPED
    except VvsError as error:
        finding, status = Finding(False, str(error)), Status.FAILED
    except Exception as error:  # a driver, an engine or a package may raise anything
        finding, status = Finding(False, f"{type(error).__name__}: {error}"), Status.FAILED
    return Check(name, status, finding.remark, time.perf_counter() - started, dict(finding.figures))


@dataclass(frozen=True)
class GpuReport:
    """All checks on one device."""

    device: str
    stand_in: bool
    """Whether the device is none: then there are no times, and no claim about a GPU."""
    environment: Mapping[str, Any]
    bundle: Mapping[str, Any]
    checks: tuple[Check, ...]

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return any(check.status is Status.FAILED for check in self.checks)

    @property
    def file_name(self) -> str:
        """The device's name as that of a file, without a suffix."""
        letters = "".join(letter if letter.isalnum() else "-" for letter in self.device.lower())
        return "-".join(part for part in letters.split("-") if part)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "stand_in": self.stand_in,
            "failed": self.failed,
            "environment": dict(self.environment),
            "bundle": dict(self.bundle),
            "checks": [check.to_dict() for check in self.checks],
        }

    def page(self) -> str:
        """As Markdown."""
        where = self.environment
        packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items() if version)
        parts = [
            f"# {self.device}\n",
            *([STAND_IN + "\n"] if self.stand_in else []),
            f"{where['processor']}, {where['system']}, Python {where['python']}; driver {_driver(where)}; "
            f"{packages}. Bundle {self.bundle['name']} in {self.bundle['precision']}; "
            f"revision {where['revision']}.\n",
            markdown([self._row(check) for check in self.checks]),
        ]
        for check in self.checks:
            if check.figures.get("table"):
                parts.append(f"## {check.name}\n")
                parts.append(markdown(check.figures["table"]))
        return "\n".join(parts)

    def _row(self, check: Check) -> dict[str, str]:
        return {"check": check.name, "status": str(check.status), "remark": check.remark.replace("|", "/")}


def _driver(environment: Mapping[str, Any]) -> str:
    driver = environment["driver"]
    if driver is None:
        return "none"
    return f"{driver['version'] or 'of unknown version'} for CUDA {'.'.join(map(str, driver['cuda']))}"
