"""``vvs eval`` on a tiny bundle of random weights, whose judge is a stand-in that looks at brightness."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from vvs.benchmarks import evaluation as evaluation_module
from vvs.benchmarks import exam as exam_module
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.evaluation import EvaluationSettings, evaluate
from vvs.benchmarks.evaluation_report import published_rows, sentences, speed_quality_rows
from vvs.benchmarks.gallery import Gallery
from vvs.benchmarks.judge import Judgement
from vvs.cli.app import app
from vvs.errors import SettingsError
from vvs.runtime.pipeline import Pipeline

COUNT = 6
Vvs = Callable[..., Result]


class TinyExam:
    """Says of every other picture that it is right; features are brightness and contrast of the colours."""

    def __init__(self, count: int = COUNT) -> None:
        self.prompts = [("a red dress", "a blue shirt", "green shoe")[i % 3] for i in range(count)]
        self.held_out = np.arange(count) % 3 == 2
        self.reference = np.random.default_rng(0).normal(100, 40, (count, 4))
        self.perfect = None

    def judge(self, pixels: NDArray[np.uint8]) -> Judgement:
        right = np.arange(len(pixels)) % 2 == 0
        features = np.concatenate([pixels.mean((1, 2)), pixels.std((1, 2))[:, :1]], axis=1)
        return Judgement(right, np.ones(len(pixels), bool), features.astype(np.float64))


@pytest.fixture
def vvs(monkeypatch: pytest.MonkeyPatch) -> Vvs:
    monkeypatch.setattr(exam_module.DemoExam, "of", lambda weights, count: TinyExam(count))

    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(app, ["eval", *map(str, arguments)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


def test_every_mode_is_judged_with_intervals(vvs: Vvs, tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = vvs(
        tiny_bundle, "--count", COUNT, "--batch", 3, "--run", "ar", "--run", "lantern",
        "--run", "vvs policy=uniform:3 acceptance=lantern:k=8,delta=0.1",
        "--resamples", 20, "--pictures", tmp_path / "kept", "-o", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in out.iterdir()} == {"eval.json", "eval.md", "eval.png", "pictures.png"}
    data = json.loads((out / "eval.json").read_text())
    assert data["schema"] == 1
    assert data["settings"] == {"count": COUNT, "seed": 0, "batch": 3, "resamples": 20}
    ar, lantern, skipping = data["contenders"].values()
    assert ar["step_compression"] == {"value": 1, "low": 1, "high": 1}
    assert ar["points_over_baseline"] == {"value": 0, "low": 0, "high": 0}
    assert ar["accepted"] == 0
    assert skipping["step_compression"]["value"] > 1
    for mode in (ar, lantern, skipping):
        assert mode["score"]["low"] <= mode["score"]["value"] == 0.5 <= mode["score"]["high"]
        distance = mode["frechet_distance"]
        assert distance["low"] <= distance["value"] <= distance["high"]
        assert 0 <= mode["recall"] <= 1
    text = " ".join((out / "eval.md").read_text().split())
    tree = Pipeline.from_bundle(tiny_bundle).bundle.manifest.default_tree
    assert f"| demo, n = 6 | vvs | {tree} | uniform 3 | 0.1 |" in text
    assert "| LlamaGen-XL, stage II | VVS | - | uniform 2 | 0.1 | 2.86 | 47.19 |" in text
    assert "Another model and other data" in text
    assert "n = 6 pictures per mode" in result.stdout
    # Again: nothing is drawn any more, and the figures are the same.
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert len(kept) == 3
    again = vvs(
        tiny_bundle, "--count", COUNT, "--batch", 3, "--run", "ar", "--resamples", 20, "--no-plots",
        "--pictures", tmp_path / "kept", "-o", tmp_path / "again",
    )  # fmt: skip
    assert again.exit_code == 0, again.stderr
    assert kept == {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert json.loads((tmp_path / "again" / "eval.json").read_text())["contenders"]["ar"] == ar
    assert not (tmp_path / "again" / "eval.png").exists()


def test_a_run_that_was_stopped_goes_on(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vvs.benchmarks.gallery.TOGETHER", 2)
    pipeline = Pipeline.from_bundle(tiny_bundle)
    contender, prompts = Contender.parse("ar", pipeline), TinyExam().prompts
    gallery = Gallery(tmp_path, pipeline, "onnxruntime")

    def stop(pictures: int) -> None:
        drawn.append(pictures)
        if len(drawn) == 2:
            raise KeyboardInterrupt

    drawn: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        gallery.draw(contender, prompts, 0, 2, stop)
    assert len(list(tmp_path.iterdir())) == 1
    (first,) = tmp_path.iterdir()
    finished = first.stat().st_mtime_ns
    whole = gallery.draw(contender, prompts, 0, 2)
    assert first.stat().st_mtime_ns == finished
    assert len(list(tmp_path.iterdir())) == 3
    assert np.array_equal(whole.pixels, pipeline.generate(prompts, contender.config, 0).pixels)
    # A damaged file is drawn again, and a larger count goes on from what there is.
    first.write_bytes(b"no zip")
    longer = gallery.draw(contender, [*prompts, "a red dress"], 0, 2)
    assert np.array_equal(longer.pixels[:COUNT], whole.pixels)
    assert len(list(tmp_path.iterdir())) == 4


def test_other_settings_are_other_pictures(tiny_bundle: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)
    one, other = (Contender.parse(text, pipeline) for text in ("ar", "ar temperature=0.5"))
    paths = [
        Gallery(tmp_path, pipeline, backend)._path(contender, prompts, seed)
        for backend, contender, prompts, seed in (
            ("onnxruntime", one, ["a"], 0), ("cuda", one, ["a"], 0), ("onnxruntime", other, ["a"], 0),
            ("onnxruntime", one, ["b"], 0), ("onnxruntime", one, ["a"], 1),
        )
    ]  # fmt: skip
    assert len(set(paths)) == 5


def test_few_pictures_are_said_to_be_few(tiny_bundle: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)
    settings = EvaluationSettings(count=4, resamples=0)
    done = evaluate(
        [Contender.parse("ar", pipeline)], TinyExam(4), Gallery(tmp_path, pipeline, "onnxruntime"), settings
    )
    assert any("too few for a covariance of 4 features" in sentence for sentence in sentences(done))
    assert list(speed_quality_rows(done)[0]) == list(published_rows()[0])
    assert "(" not in speed_quality_rows(done)[0]["Fréchet distance"]


def test_the_papers_table_tells_modes_apart(tiny_bundle: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)
    *_, tree = pipeline.bundle.manifest.trees
    runs = (
        "vvs policy=never",
        f"vvs policy=uniform:4 tree={tree}",
        "vvs policy=share:0.5",
        "vvs policy=dynamic:0.4",
    )
    modes = [Contender.parse(run, pipeline) for run in runs]
    settings = EvaluationSettings(count=4, resamples=0)
    done = evaluate(modes, TinyExam(4), Gallery(tmp_path, pipeline, "onnxruntime"), settings)
    rows = speed_quality_rows(done)
    assert [row["skipping"] for row in rows] == ["-", "uniform 4", "share 0.5", "dynamic 0.4"]
    assert rows[1]["tree"] == str(tree)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"count": 3}, "count is 3, but it must be at least 4"),
        ({"resamples": -1}, "resamples is -1"),
    ],
)
def test_bad_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        EvaluationSettings(**settings)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--run", "warp"], "unknown mode 'warp'"),
        (["--count", "1"], "count is 1"),
        (["--count", "4", "--batch", "5"], "batch is 5"),
    ],
)
def test_bad_input_is_a_sentence(
    vvs: Vvs, tiny_bundle: Path, tmp_path: Path, options: list[str], sentence: str
) -> None:
    result = vvs(tiny_bundle, *options, "-o", tmp_path / "out", "--pictures", tmp_path / "kept")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert not list(tmp_path.iterdir())
    assert "such as `vvs eval engines/demo`" in vvs().stderr


def test_the_sweep_is_one_that_bundles_know(tiny_bundle: Path) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)
    labels = [Contender.parse(text, pipeline).label for text in evaluation_module.SWEEP]
    assert labels[0] == "ar"
    assert len(set(labels)) == len(labels)
