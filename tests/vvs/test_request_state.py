"""What a request keeps between steps: counts, features, statistics."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vvs.feature_cache import FeatureCache
from vvs.progress import Phase, Progress
from vvs.statistics import Span, Statistics, StepKind, StepTimes, Stopwatch


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=30))
def test_progress_keeps_its_invariant(steps: list[tuple[bool, int]]) -> None:
    progress = Progress.after_prefill(10)
    emitted = chain = 0
    for skip, n in steps:
        progress.drafted()
        assert progress.drafter_rows == progress.root_position
        progress.skipped(n) if skip else progress.verified(n)
        emitted += n if skip else n + 1
        chain = chain + n if skip else 0
        assert (progress.emitted, progress.chain) == (emitted, chain)
        assert progress.target_rows == 10 + emitted - chain
        assert progress.phase is (Phase.SKIPPED if skip else Phase.VERIFIED)
    assert progress.steps == len(steps)


@pytest.mark.parametrize("wrong", [{"emitted": 1}, {"chain": 1}, {"target_rows": 9}, {"drafter_rows": 11}])
def test_lost_rows_are_noticed(wrong: dict[str, int]) -> None:
    with pytest.raises(RuntimeError, match="lost count of its rows"):
        replace(Progress.after_prefill(10), **wrong)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=10), st.integers(1, 6), st.data())
def test_stale_features_are_the_newest_oldest_first(
    sizes: list[int], window: int, data: st.DataObject
) -> None:
    cache = FeatureCache(window)
    pushed: list[int] = []
    for size in sizes:
        new = list(range(len(pushed), len(pushed) + size))
        cache.push(np.array([new, new], np.float16)[..., None])
        pushed += new
    length = data.draw(st.integers(1, window))
    stale = cache.stale(length)
    last = pushed[-length:]
    assert stale.dtype == np.float16
    assert stale.shape == (2, length, 1)
    assert stale[1, :, 0].tolist() == last + [last[-1]] * (length - len(last))


def test_a_cache_does_not_keep_more_than_its_window() -> None:
    cache = FeatureCache(2)
    cache.push(np.zeros((2, 50, 3)))
    held = cache._features
    assert held is not None
    assert held.shape == (2, 2, 3)
    assert held.base is None
    with pytest.raises(RuntimeError, match="3 stale features"):
        cache.stale(3)
    with pytest.raises(RuntimeError, match="may be empty"):
        FeatureCache(2).stale(1)


def times(total: float, engines: float) -> StepTimes:
    return StepTimes(
        {**dict.fromkeys(Span, 0.0), Span.TARGET: engines, Span.HOST: total - engines}, total, engines
    )


def test_statistics_count_each_kind_of_step_apart() -> None:
    statistics = Statistics(image_tokens=12)
    assert statistics.step_compression == 0
    statistics.count_prefill(times(1.0, 0.75))
    statistics.count_step(StepKind.VERIFY, 2, times(1.0, 0.75))
    statistics.count_step(StepKind.VERIFY, 0, times(1.0, 0.5))
    statistics.count_step(StepKind.SKIP, 3, times(0.5, 0.25))
    assert (statistics.forward_passes, statistics.steps, statistics.skips) == (3, 3, 1)
    assert statistics.step_compression == 4
    assert statistics.mean_accepted(StepKind.VERIFY) == 1
    assert statistics.mean_accepted(StepKind.SKIP) == 3
    assert statistics.step_seconds == {StepKind.VERIFY: 2.0, StepKind.SKIP: 0.5}
    assert statistics.outside_engines == {StepKind.VERIFY: 0.75, StepKind.SKIP: 0.25}
    statistics.seconds[Span.DECODE] += 0.125
    assert json.loads(json.dumps(statistics.to_dict())) == {
        "image_tokens": 12,
        "forward_passes": 3,
        "steps": 3,
        "skips": 1,
        "step_compression": 4.0,
        "mean_accepted": {"verify": 1.0, "skip": 3.0},
        "accepted_lengths": {"verify": {"0": 1, "2": 1}, "skip": {"3": 1}},
        "seconds": {
            "prefill": 1.0,
            "draft": 0,
            "target": 1.5,
            "accept": 0,
            "commit": 0,
            "decode": 0.125,
            "device": 0,
            "host": 1.0,
        },
        "step_seconds": {"verify": 2.0, "skip": 0.5},
        "outside_engines": {"verify": 0.75, "skip": 0.25},
    }


def test_steps_that_nobody_timed_have_no_seconds() -> None:
    statistics = Statistics(image_tokens=12)
    statistics.count_unseen(times(1.0, 0.75))
    statistics.count_step(StepKind.VERIFY, 2, None)
    statistics.count_step(StepKind.SKIP, 3, None)
    assert (statistics.steps, statistics.skips, statistics.untimed_steps) == (2, 1, 2)
    assert sum(statistics.seconds.values()) == 1
    assert statistics.to_dict()["step_seconds"] is statistics.to_dict()["outside_engines"] is None


def test_a_stopwatch_leaves_out_the_time_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 100.0, 101.0, 103.0, 104.0, 200.0, 201.0])
    monkeypatch.setattr("vvs.statistics.perf_counter", lambda: next(clock))
    watch = Stopwatch()
    watch.resume()
    with watch.measure(Span.DRAFT):
        pass
    step = watch.lap(engine_seconds=1.5)
    assert (step.total, step.engines, step.outside_engines) == (4, 1.5, 2.5)
    assert (step.spans[Span.DRAFT], step.spans[Span.HOST]) == (2, 2)
    watch.resume()
    assert watch.lap(engine_seconds=1.75).engines == 0.25
