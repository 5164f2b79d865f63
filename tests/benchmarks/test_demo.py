"""Comparisons side by side, on a tiny bundle of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from vvs.benchmarks.comparison import compare
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.demo import main
from vvs.errors import SettingsError
from vvs.runtime.pipeline import Pipeline
from vvs.skipping import Uniform


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(scope="module")
def pipeline(tiny_bundle: Path) -> Pipeline:
    return Pipeline.from_bundle(tiny_bundle)


def test_a_contender_is_a_mode_and_what_differs(pipeline: Pipeline) -> None:
    contender = Contender.parse("vvs  policy=uniform:3 acceptance=exact top_k=5 temperature=0.5", pipeline)
    assert contender.label == "vvs policy=uniform:3 acceptance=exact top_k=5 temperature=0.5"
    assert contender.config.skipping == Uniform(3)
    assert (contender.config.sampling.top_k, contender.config.sampling.temperature) == (5, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("warp", "unknown mode"),
        ("vvs fast", "key=value"),
        ("vvs top_k=many", "must be a number"),
        ("vvs policy=uniform:1", "interval is 1"),
    ],
)
def test_bad_contenders(pipeline: Pipeline, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Contender.parse(text, pipeline)


def test_figures_are_of_the_same_pictures_side_by_side(pipeline: Pipeline) -> None:
    contenders = [Contender.parse(text, pipeline) for text in ("ar", "vvs policy=uniform:2")]
    ticks: list[None] = []
    prompts, seeds = ["a red dress", "a blue shoe"], [3, 4]
    ar, vvs = compare(pipeline, contenders, prompts, seeds, lambda: ticks.append(None))
    assert len(ticks) == 2 + 2 * 2
    tokens = pipeline.bundle.manifest.geometry.image_tokens
    figures = ar.figures(ar)
    assert figures["forward_passes"] == tokens
    assert figures["step_compression"] == figures["ratio"] == 1
    assert figures["accepted_verify"] == figures["skip_share"] == 0
    faster = vvs.figures(ar)
    assert faster["forward_passes"] < tokens
    assert faster["ratio"] == pytest.approx(
        sum(a / b for a, b in zip(ar.seconds, vvs.seconds, strict=True)) / 2
    )
    assert all(0 < share < 1 for share in faster["outside_engines"].values())
    assert 0.3 < faster["skip_share"] < 0.7
    assert faster["accepted_skip"] >= 1


def test_the_command_writes_a_picture_a_table_and_data(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, output = run(str(tiny_bundle), "--out", str(out), "--repeats", "1", "--run", "ar", "--run", "vvs")
    assert code == 0, output
    assert {path.name for path in out.iterdir()} == {"grid.png", "table.md", "results.json"}
    data = json.loads((out / "results.json").read_text())
    assert list(data["contenders"]) == ["ar", "vvs"]
    assert data["contenders"]["vvs"]["skip_share"] > 0
    assert data["environment"]["processor"]
    assert (out / "table.md").read_text().count("\n") == 4


def test_bad_input_is_a_sentence(tiny_bundle: Path, tmp_path: Path) -> None:
    code, output = run(str(tmp_path / "nowhere"))
    assert code == 1
    assert output.startswith("error:")
    code, output = run(str(tiny_bundle), "--run", "warp", "--out", str(tmp_path / "out"))
    assert code == 1
    assert "unknown mode 'warp'" in output
    assert not (tmp_path / "out").exists()
