"""``vvs bench``: what is measured, reported, plotted and compared. A fake clock where figures are checked."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from vvs.benchmarks import bench_plots
from vvs.benchmarks.bench import Setup, bench
from vvs.benchmarks.bench_changes import changes, differences
from vvs.benchmarks.bench_report import depth_rows, phase_rows, sentences, speed_rows, step_rows
from vvs.benchmarks.bootstrap import Estimate, estimate, percentile
from vvs.benchmarks.memory import forget_peak, peak_bytes
from vvs.benchmarks.timing import TimingSettings, measure
from vvs.cli.app import app
from vvs.errors import SettingsError
from vvs.runtime.pipeline import Pipeline
from vvs.statistics import Statistics, StepKind, StepTimes

Vvs = Callable[..., Result]


@pytest.fixture
def vvs() -> Vvs:
    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@dataclass
class Fake:
    """A runner whose calls take as long as a fake clock says."""

    label: str
    takes: float
    clock: list[float]
    order: list[str]

    @property
    def config(self) -> dict[str, Any]:
        return {"takes": self.takes, "tree": "oak"}

    @property
    def foreign(self) -> bool:
        return False

    def run(self, prompts: Sequence[str], seeds: Sequence[int]) -> tuple[Statistics, ...]:
        self.clock[0] += self.takes
        self.order.append(f"{self.label} {' '.join(prompts)} {' '.join(map(str, seeds))}")
        statistics = [Statistics(image_tokens=12) for _ in prompts]
        for one in statistics:
            one.count_prefill(StepTimes({}, 0.5, 0.5))
            one.count_step(StepKind.VERIFY, 2, StepTimes({}, 1.0, 0.75))
            one.count_step(StepKind.VERIFY, 0, StepTimes({}, 1.0, 0.75))
            one.count_step(StepKind.SKIP, 3, StepTimes({}, 1.0, 0.5))
        return tuple(statistics)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> tuple[Fake, Fake]:
    clock, order = [0.0], list[str]()
    monkeypatch.setattr("vvs.benchmarks.timing.perf_counter", lambda: clock[0])
    return Fake("slow", 2.0, clock, order), Fake("fast", 0.5, clock, order)


def test_runners_take_turns_over_the_same_prompts(fakes: tuple[Fake, Fake]) -> None:
    told: list[float] = []
    settings = TimingSettings(warm_up_ms=900, duration_s=1.0, iterations=2, seed=7)
    slow, fast = measure(fakes, ["a", "b", "c"], 2, settings, told.append)
    # Warm-up: one call is enough for the slow one, the fast one needs two.
    assert fakes[0].order == [
        "slow a b 7 8",
        *["fast a b 7 8"] * 2,
        *("slow a b 7 8", "fast a b 7 8"),
        *("fast c a 9 10", "slow c a 9 10"),
    ]
    assert (slow.seconds, fast.seconds) == ([2.0, 2.0], [0.5, 0.5])
    assert told == [0.5, 1.0]
    figures = fast.figures(slow)
    assert figures["ratio"] == {"value": 4, "low": 4, "high": 4}
    assert figures["latency_ms"]["p50"]["value"] == 500
    assert (figures["images_per_second"], figures["tokens_per_second"]) == (4, 48)
    assert (figures["forward_passes"], figures["step_compression"]) == (3, 4)
    assert figures["accepted_at_least"] == {"verify": [0.5, 0.5], "skip": [1, 1, 1]}
    # Three pictures of each batch of two: every step of all four.
    assert figures["accepted_lengths"] == {"verify": {"0": 4, "2": 4}, "skip": {"3": 4}}
    assert figures["skip_share"] == pytest.approx(1 / 3)
    assert (figures["device_ms"], figures["outside_ms"]) == (2000, 1000)
    assert figures["phase_ms"]["prefill"] == 500


def test_measuring_goes_on_until_it_was_long_enough(fakes: tuple[Fake, Fake]) -> None:
    slow, fast = measure(fakes, ["a"], 1, TimingSettings(warm_up_ms=0, duration_s=3, iterations=2))
    assert len(slow.seconds) == len(fast.seconds) == 6  # the baseline stays to the end


def test_who_has_enough_drops_out_and_is_compared_to_the_same_rounds(fakes: tuple[Fake, Fake]) -> None:
    slow, fast = fakes
    settings = TimingSettings(warm_up_ms=0, duration_s=3, iterations=2)
    first, later = measure((fast, slow), ["a", "b"], 1, settings)
    assert (len(first.seconds), len(later.seconds)) == (6, 2)
    # Rounds of one prompt and one seed: those that the slow one took are the first ones of both.
    rounds = [line.split(" ", 1) for line in fast.order[2:]]
    assert [given for label, given in rounds if label == "slow"] == ["a 0", "b 1"]
    assert [given for label, given in rounds if label == "fast"] == ["a 0", "b 1", "a 2", "b 3", "a 4", "b 5"]
    assert later.figures(first)["ratio"]["value"] == 0.25


@pytest.mark.parametrize("wrong", [{"iterations": 0}, {"warm_up_ms": -1}, {"duration_s": -1}])
def test_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="they must be at least 1, 0 and 0"):
        TimingSettings(**wrong)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30))
def test_an_interval_holds_its_figure(samples: list[float]) -> None:
    array = np.array(samples)
    found = percentile(array, 0.5)
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(np.median(array))
    assert array.min() <= found.low
    assert found.high <= array.max()
    assert percentile(array, 0.5) == found


def test_an_interval_of_a_mean_is_about_as_wide_as_theory_says() -> None:
    samples = np.random.default_rng(0).normal(5, 2, 400)
    found = estimate(samples, lambda drawn: drawn.mean(axis=-1))
    assert found.high - found.low == pytest.approx(2 * 1.96 * 2 / 20, rel=0.15)


def test_peaks_are_those_since_they_were_forgotten() -> None:
    if not forget_peak():
        pytest.skip("this system does not let a process forget its peak")
    before = peak_bytes()
    block = np.ones(8 << 20)
    after = peak_bytes()
    assert before is not None
    assert after is not None
    assert after - before > 0.9 * block.nbytes
    del block
    assert forget_peak()
    again = peak_bytes()
    assert again is not None
    assert again < after


def test_the_command_reports_plots_and_compares(vvs: Vvs, tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    short = ("--iterations", 2, "--duration", 0, "--warm-up", 0, "--threads", 1, "--no-floor")
    modes = ("--run", "ar", "--run", "vvs policy=uniform:2", "--batch", 1, "--batch", 2)
    result = vvs("bench", tiny_bundle, *modes, *short, "-o", out)
    assert result.exit_code == 0, result.output
    names = {"bench.json", "bench.md", "latency.png", "phases.png", "acceptance.png"}
    assert {path.name for path in out.iterdir()} == names
    report = json.loads((out / "bench.json").read_text())
    assert [(r["label"], r["batch"], r["calls"]) for r in report["results"]] == list(
        itertools.chain(*([("ar", b, 2), ("vvs policy=uniform:2", b, 2)] for b in (1, 2)))
    )
    assert report["results"][0]["step_compression"] == 1
    assert report["environment"]["packages"]["onnxruntime"]
    assert report["environment"]["threads"] == 1
    assert re.fullmatch("[0-9a-f]{64}", report["bundle"]["files"])
    assert (out / "bench.md").read_text().count("| vvs policy=uniform:2 | 2 |") == 4
    assert "decode" in report["results"][1]["phase_ms"]
    # The same report against itself, then against one that is surely slower.
    same = vvs("bench", "--compare", out / "bench.json", out / "bench.json")
    assert same.exit_code == 0, same.output
    slower = copy.deepcopy(report)
    slower["results"][3]["latency_ms"]["p50"] = {"value": 1e6, "low": 9e5, "high": 2e6}
    slower["environment"]["threads"] = 99
    (tmp_path / "slower.json").write_text(json.dumps(slower))
    worse = vvs("bench", "--compare", out / "bench.json", tmp_path / "slower.json")
    assert worse.exit_code == 1
    assert "slower" in worse.output
    assert "threads differ" in worse.output
    assert vvs("bench", "--compare", tmp_path / "slower.json", out / "bench.json").exit_code == 0


def test_quality_is_plotted_against_speed_where_settings_were_scored(
    vvs: Vvs, tiny_bundle: Path, tmp_path: Path
) -> None:
    pipeline = Pipeline.from_bundle(tiny_bundle)
    score = {"contenders": {"x": {"config": pipeline.configure("ar").describe(), "score": {"value": 0.6}}}}
    (tmp_path / "eval.json").write_text(json.dumps(score))
    short = ("--iterations", 1, "--duration", 0, "--warm-up", 0, "--run", "ar", "--threads", 1, "--no-floor")
    result = vvs("bench", tiny_bundle, *short, "-o", tmp_path / "o", "--score", tmp_path / "eval.json")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "o" / "quality.png").is_file()


def test_every_mode_of_a_plot_looks_different_and_other_loops_have_no_score_of_ours() -> None:
    results = [result_of(f"mode {i}", 1, 2, 1.0, foreign=i > 12) for i in range(16)]
    looks = {(style["color"], style["marker"]) for _, style in bench_plots._styled(results)}
    assert len(looks) == len(results)
    score = {"contenders": {"x": {"config": results[0]["config"], "score": {"value": 0.5}}}}
    scored = bench_plots._scored(results, score)
    assert [label for label, _, _ in scored] == [f"mode {i}" for i in range(13)]


def result_of(
    label: str, low: float, high: float, ratio: float, tree: str | None = "oak", *, foreign: bool = False
) -> dict[str, Any]:
    estimate_ = {"value": (low + high) / 2, "low": low, "high": high}
    return {
        "label": label,
        "config": {"tree": tree},
        "foreign": foreign,
        "batch": 1,
        "latency_ms": {"p50": estimate_},
        "ratio": {"value": ratio, "low": ratio - 0.01, "high": ratio + 0.01},
        "step_compression": 2.0,
    }


def report_of(*results: dict[str, Any]) -> dict[str, Any]:
    return {
        "settings": {"baseline": "ar"},
        "notes": [],
        "results": list(results),
        "environment": {"processor": "p", "threads": 2, "packages": {}},
        "bundle": {},
    }


def test_what_does_not_pay_is_said() -> None:
    ar, slow, fast = (
        result_of("ar", 1, 2, 1.0, None),
        result_of("eagle", 1, 2, 0.5),
        result_of("vvs", 1, 2, 1.5),
    )
    assert sentences(report_of(ar, slow, fast)) == [
        "eagle does not pay here at batch 1: it takes 2.00 times as long as ar."
    ]
    assert sentences(report_of(ar, fast)) == []
    assert "at batch 1: nothing that drafts is surely faster than ar" in sentences(report_of(ar, slow))[-1]
    # Within the noise of AR is not faster; and what pays at one batch size may not pay at another.
    (unsure,) = sentences(report_of(ar, result_of("vvs", 1, 2, 1.0)))
    assert "nothing that drafts is surely faster" in unsure
    (larger,) = sentences(report_of(ar, fast, ar | {"batch": 8}, slow | {"batch": 8}))[1:]
    assert "at batch 8: nothing" in larger


def test_other_loops_are_compared_to_ours_of_the_same_settings_and_prove_nothing_about_drafting() -> None:
    ar, ours = result_of("ar", 1, 3, 1.0, None), result_of("vvs", 1, 1, 2.0, "elm")
    theirs = [
        result_of("eager ar", 4, 6, 0.4, None, foreign=True),
        result_of("eager vvs", 7, 9, 0.25, "elm", foreign=True),
        result_of("eager eagle", 7, 9, 0.25, "fir", foreign=True),
    ]
    assert sentences(report_of(ar, ours, *theirs) | {"notes": ["one more is left out."]}) == [
        "one more is left out.",
        "eager ar takes 2.50 times as long as ar, with the same settings at batch 1.",
        "eager vvs takes 8.00 times as long as vvs, with the same settings at batch 1.",
    ]


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(13, 15, "slower"), (9, 12.5, "the same"), (5, 7, "faster")]
)
def test_a_regression_is_beyond_both_intervals(low: float, high: float, verdict: str) -> None:
    before, after = (report_of(result_of("ar", a, b, 1)) for a, b in ((10, 12), (low, high)))
    (change,) = changes(before, after)
    assert change.verdict == verdict
    assert change.regressed == (verdict == "slower")
    assert differences(before, after) == []


def test_intervals_that_touch_overlap() -> None:
    assert Estimate(1, 0, 2).overlaps(Estimate(3, 2, 4))
    assert not Estimate(1, 0, 1.9).overlaps(Estimate(3, 2, 4))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "there is no report"), ("no json", "is no benchmark report"), ("[]", "has no results"),
     ('{"results": [], "schema": 99}', "has schema 99, but this version reads 1")],
)  # fmt: skip
def test_reports_that_cannot_be_compared(
    vvs: Vvs, tmp_path: Path, content: str | None, sentence: str
) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    result = vvs("bench", "--compare", path, path)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_requests_that_cannot_be_measured(vvs: Vvs, tiny_bundle: Path, tmp_path: Path) -> None:
    assert "say which bundle" in vvs("bench").stderr
    result = vvs("bench", tiny_bundle, "--batch", 9, "-o", tmp_path / "o")
    assert result.exit_code == 2
    assert "batch is 9, but this bundle takes 1..4" in result.stderr
    assert not (tmp_path / "o").exists()
    result = vvs("bench", tiny_bundle, "--run", "warp")
    assert "unknown mode 'warp'" in result.stderr
    pipeline = Pipeline.from_bundle(tiny_bundle)
    with pytest.raises(SettingsError, match="nothing to measure"):
        bench([], pipeline, ["a"], [1], TimingSettings(), Setup())


def test_the_tables_have_every_result(fakes: tuple[Fake, Fake]) -> None:
    timed = measure(fakes, ["a"], 1, TimingSettings(warm_up_ms=0, duration_s=0, iterations=3))
    report = report_of(*(one.figures(timed[0]) for one in timed))
    table = speed_rows(report)
    assert [row["mode"] for row in table] == ["slow", "fast"]
    assert table[1]["speed-up (95%)"] == "4.00 (4.00..4.00)"
    assert step_rows(report)[0]["steps skipped"] == "33%"
    assert phase_rows(report)[1] == {
        "mode": "fast",
        "batch": "1",
        "prefill": "500.0",
        "steps, in engines": "2000.0",
        "steps, outside": "1000.0 (33%)",
    }
    assert depth_rows(report)[0] == {"mode": "slow", "batch": "1", ">= 1": "50%", ">= 2": "50%"}


def test_a_trace_shows_a_picture_of_every_mode(vvs: Vvs, tiny_bundle: Path, tmp_path: Path) -> None:
    short = ("--iterations", 1, "--duration", 0, "--warm-up", 0, "--threads", 1, "--no-floor", "--no-plots")
    path = tmp_path / "trace.json"
    result = vvs(
        "bench", tiny_bundle, *short, "--run", "ar", "--run", "vvs", "-o", tmp_path / "o", "--trace", path
    )
    assert result.exit_code == 0, result.output
    events = json.loads(path.read_text())["traceEvents"]
    modes = {event["name"]: event for event in events if event["name"] in {"ar", "vvs"}}
    spans = [event for event in events if event["name"] not in modes]
    assert {event["name"] for event in spans} >= {"prefill", "draft", "target", "accept", "decode"}
    for event in spans:
        drawn = [m for m in modes.values() if m["ts"] <= event["ts"] < m["ts"] + m["dur"]]
        assert len(drawn) == 1
    assert sum(event["name"] == "prefill" for event in spans) == 2
