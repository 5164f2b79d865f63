"""Reports and the environment they name."""

from __future__ import annotations

import json
from pathlib import Path

from vvs.benchmarks.environment import environment
from vvs.benchmarks.report import markdown, write_json

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
