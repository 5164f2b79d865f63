"""Reports and the environment they name."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from vvs.benchmarks.environment import bundle_identity, environment
from vvs.benchmarks.report import markdown, print_table, write_json
from vvs.runtime.bundle import Bundle
from vvs.runtime.cuda_driver import Driver, Gpu

ROWS = [{"mode": "ar", "ms": "10"}, {"mode": "vvs", "ms": "5"}]


def test_markdown() -> None:
    assert markdown(ROWS) == "| mode | ms |\n| --- | ---: |\n| ar | 10 |\n| vvs | 5 |\n"


def test_files_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.json"
    write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]


def test_the_environment_names_machine_and_versions() -> None:
    where = environment(threads=3)
    assert where["threads"] == 3
    assert where["processor"]
    assert where["packages"]["numpy"]
    json.dumps(where)


def test_a_gpu_and_its_driver_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for a driver, which is asked for no more than its name and versions."""
    (tmp_path / "version").write_text("580.65.06\n")
    monkeypatch.setattr("vvs.benchmarks.environment.DRIVER_VERSION", tmp_path / "version")
    driver = Driver((13, 0), (Gpu("NVIDIA L40S", "sm_89"),))
    monkeypatch.setattr("vvs.benchmarks.environment.find_driver", lambda: driver)
    where = environment()
    assert where["gpus"] == ["NVIDIA L40S (sm_89)"]
    assert where["driver"] == {"version": "580.65.06", "cuda": [13, 0]}
    monkeypatch.setattr("vvs.benchmarks.environment.find_driver", lambda: None)
    assert (environment()["gpus"], environment()["driver"]) == ([], None)


def test_a_bundle_is_another_one_when_a_file_changes(tiny_bundle: Path) -> None:
    manifest = Bundle.open(tiny_bundle).manifest
    name, spec = next(iter(manifest.files.items()))
    changed = replace(manifest, files={**manifest.files, name: replace(spec, sha256="0" * 64)})
    tuned = replace(manifest, device_defaults={"here": {"mode": "ar"}})
    assert bundle_identity(changed)["files"] != bundle_identity(manifest)["files"]
    assert bundle_identity(tuned) == bundle_identity(manifest)


def test_a_table_in_a_file_is_not_cut_to_a_terminals_width() -> None:
    label = "vvs [draft] " + "policy=uniform:2 " * 20
    file = StringIO()
    print_table([{"mode": label, "ms": "1"}], "Modes", Console(file=file))
    assert label.strip() in file.getvalue()


def test_a_table_in_a_narrow_terminal_wraps_and_loses_nothing() -> None:
    label = "ABCDEFGHIJ" * 12
    file = StringIO()
    print_table([{"mode": label, "ms": "1"}], "Modes", Console(file=file, force_terminal=True, width=40))
    assert "".join(re.findall("[A-J]+", file.getvalue())) == label
