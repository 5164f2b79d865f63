"""Tuning: what is tried, what is predicted, what is chosen within a budget, and what the bundle then says."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from vvs.acceptance import Exact
from vvs.benchmarks import tuning
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.quality import CommandMetric
from vvs.benchmarks.tuning import (
    Candidate,
    Finalist,
    TuningSettings,
    _Exam,
    _search,
    acceptance_by_depth,
    contenders,
    defaults_of,
    predict,
)
from vvs.cli.app import app
from vvs.config import GenerationConfig
from vvs.errors import SettingsError
from vvs.manifest import MANIFEST_FILE
from vvs.runtime.bundle import Bundle, sha256_of
from vvs.runtime.pipeline import Pipeline
from vvs.runtime.tuned import device_name, on_device, write_defaults
from vvs.statistics import Statistics, StepKind

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

Vvs = Callable[..., "Result"]

COSTS = {"prefill": 10.0, "AR": 1.0, "verify": 3.0, "verify after a skip": 4.0, "draft": 0.5}


@pytest.fixture
def vvs() -> Vvs:
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def statistics_of(verify: dict[int, int], skip: dict[int, int]) -> Statistics:
    made = Statistics(image_tokens=36)
    made.accepted[StepKind.VERIFY], made.accepted[StepKind.SKIP] = Counter(verify), Counter(skip)
    return made


def test_a_prediction_adds_up_steps(tiny_bundle: Path) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)
    costs = {"tiny": COSTS, "other": COSTS | {"draft": 0.25, "verify": 1.0}}
    ar, eagle, vvs = (Contender.parse(mode, pipeline).config for mode in ("ar", "eagle", "vvs"))
    assert predict(statistics_of({0: 35}, {}), ar, costs) == 10 + 35
    assert predict(statistics_of({0: 4, 2: 6}, {}), eagle, costs) == 10 + 10 * 0.5 + 10 * 3
    both = statistics_of({1: 6}, {2: 4})
    assert predict(both, vvs, costs) == 10 + 10 * 0.5 + 4 * 4 + 2 * 3
    # Skipped steps are drafted with their own tree.
    skipping = replace(vvs, skip_tree="other")
    assert predict(both, skipping, costs) == 10 + 6 * 0.5 + 4 * 0.25 + 4 * 4 + 2 * 3


def test_acceptance_per_depth_counts_verified_steps() -> None:
    parts = [statistics_of({0: 1, 2: 2}, {5: 9}), statistics_of({1: 1}, {})]
    assert acceptance_by_depth(parts) == (0.75, 0.5)
    assert acceptance_by_depth([statistics_of({}, {})]) == ()


def test_without_a_measure_only_lossless_settings_are_tried(tiny_bundle: Path) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)
    labels = [one.label for one in contenders(pipeline, TuningSettings(), lossy=False)]
    assert labels == ["ar", "eagle tree=tiny acceptance=exact"]
    lossy = contenders(pipeline, TuningSettings(deltas=(0.1,), intervals=(2, 4)), lossy=True)
    assert [one.label.split()[0] for one in lossy] == ["ar", "eagle", "lantern", *["vvs"] * 5]
    assert lossy[-1].label == "vvs"
    assert [one.config.acceptance == Exact() for one in lossy[3:7]] == [True, True, False, False]
    # The bundle's own k.
    assert lossy[2].config.describe()["acceptance"] == "lantern:k=16,delta=0.1"


class Fixed:
    """Quality by mode."""

    def __init__(self, **by_mode: float) -> None:
        self._by_mode = by_mode

    def of(self, pipeline: Pipeline, config: GenerationConfig) -> float:
        return self._by_mode["ar" if config.acceptance == Exact() else "vvs"]


def candidates_of(pipeline: Pipeline, **predicted: float) -> list[Candidate]:
    return [
        Candidate(Contender.parse(text, pipeline), 1.0, (), milliseconds)
        for text, milliseconds in predicted.items()
    ]


@pytest.mark.parametrize(
    ("quality", "chosen"), [(79.0, "vvs"), (70.0, "eagle"), (None, "vvs")], ids=["kept", "lost", "unjudged"]
)
def test_the_fastest_within_the_budget_is_chosen(
    tiny_bundle: Path, quality: float | None, chosen: str
) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)
    finalists = [
        Finalist(candidate, 9 * candidate.predicted, candidate.predicted)
        for candidate in candidates_of(pipeline, ar=1.0, eagle=0.8, vvs=0.5)
    ]
    judge = None if quality is None else Fixed(ar=80.0, vvs=quality)
    exam = _Exam.beside(finalists[0].candidate, pipeline, 2.0, judge)
    found, ordered = exam.choose(finalists)
    assert found.label == chosen
    assert [one.label for one in ordered] == ["vvs", "eagle", "ar"]
    assert exam.reference == (None if quality is None else 80.0)


@pytest.mark.parametrize(
    ("predicted", "times", "chosen", "known"),
    [
        # The fastest is not good enough, so the next one follows; it is, so the last one is not timed.
        (
            {"vvs": 0.5, "eagle": 0.8, "lantern": 0.9},
            {"vvs": 0.5, "eagle": 0.7},
            "eagle",
            ["vvs", "eagle", "ar"],
        ),
        # Expected to be slower than AR: not timed, whatever came before.
        ({"vvs": 0.5, "eagle": 1.8}, {"vvs": 0.5}, "ar", ["vvs", "ar"]),
        # Nothing is expected to be faster than AR: one round shows whether that is so.
        ({"vvs": 2.5, "eagle": 1.8}, {"eagle": 1.7}, "ar", ["ar", "eagle"]),
        ({}, {}, "ar", ["ar"]),
    ],
)  # fmt: skip
def test_more_follow_until_one_is_good_enough(
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    predicted: dict[str, float],
    times: dict[str, float],
    chosen: str,
    known: list[str],
) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)

    def timed(_: Any, candidates: list[Candidate], *rest: Any) -> list[Finalist]:
        return [Finalist(one, 7.0, {"ar": 1.0, **times}[one.contender.label]) for one in candidates]

    monkeypatch.setattr(tuning, "_timed", timed)
    baseline, *others = candidates_of(pipeline, ar=1.0, **predicted)
    exam = _Exam.beside(baseline, pipeline, 2.0, Fixed(ar=80.0, vvs=70.0))
    told: list[float] = []
    found, finalists = _search(exam, baseline, others, ["x"], TuningSettings(finalists=1), told.append)
    assert found.label == chosen
    assert [one.label for one in finalists] == known
    assert any(one is found for one in finalists)
    assert told[-1] == 1
    assert told == sorted(told)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [({"samples": 0}, "samples is 0, but it must be at least 1"), ({"budget": -1.0}, "budget is -1.0")],
)
def test_impossible_settings(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        TuningSettings(**wrong)


def test_a_choice_is_read_back_on_its_device_only(broken_bundle: Path) -> None:
    before = {path.name: sha256_of(path) for path in broken_bundle.iterdir()}
    pipeline = Pipeline.from_bundle(broken_bundle)
    contender = Contender.parse("vvs acceptance=lantern:k=8,delta=0.05 policy=uniform:5", pipeline)
    choice = defaults_of(Finalist(Candidate(contender, 1.0, (), 1.0), 1.0, 1.0))
    write_defaults(pipeline.bundle, "another device", {"mode": "ar"})
    write_defaults(pipeline.bundle, device_name("onnxruntime"), choice)
    tuned = Pipeline.from_bundle(broken_bundle)  # hashes are checked
    assert tuned.configure() == contender.config
    assert tuned.configure("vvs", policy="uniform:2").describe()["skipping"] == "uniform:interval=2"
    # Other settings of the bundle, and other devices, keep theirs.
    assert tuned.configure("ar") == pipeline.configure("ar")
    plain = Bundle.open(broken_bundle).manifest
    assert plain.for_device("unheard of") == plain
    assert plain.for_device("another device").defaults["mode"] == "ar"
    after = {path.name: sha256_of(path) for path in broken_bundle.iterdir()}
    assert {name for name in after if after[name] != before.get(name)} == {MANIFEST_FILE}
    assert on_device(pipeline.bundle, "onnxruntime") is pipeline.bundle


def test_the_command_writes_the_choice_and_the_curve(vvs: Vvs, broken_bundle: Path, tmp_path: Path) -> None:
    count = "import pathlib, sys; print(len(list(pathlib.Path(sys.argv[1]).iterdir())))"
    metric = f'{sys.executable} -c "{count}"'
    few = ("--samples", 1, "--repeats", 1, "--finalists", 2, "--pictures", 2, "--delta", 0.2, "--interval", 2)
    result = vvs("tune", broken_bundle, "--metric", metric, *few, "-o", tmp_path / "o")
    assert result.exit_code == 0, result.output
    assert "quality of AR: 2.00" in result.output
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"tuning.json", "tuning.png"}
    report = json.loads((tmp_path / "o" / "tuning.json").read_text())
    assert report["candidates"][0]["step_compression"] == 1
    assert Bundle.open(broken_bundle).manifest.device_defaults == {report["device"]: report["defaults"]}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [(("--judge", "x", "--metric", "true"), "give one of them"),
     (("--budget", "1", "--metric", " "), "--metric is empty")],
)  # fmt: skip
def test_requests_that_cannot_be_tuned(
    vvs: Vvs, tiny_bundle: Path, options: tuple[str, ...], sentence: str
) -> None:
    result = vvs("tune", tiny_bundle, *options)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("no-such-command-anywhere", "cannot be run"),
        ("false", "exit code 1"),
        ("echo good", "must be a number"),
    ],
)
def test_metrics_that_give_no_number(tiny_bundle: Path, command: str, sentence: str) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)
    with pytest.raises(SettingsError, match=sentence):
        CommandMetric(command, ["a red dress"], 1).of(pipeline, pipeline.configure("ar"))
