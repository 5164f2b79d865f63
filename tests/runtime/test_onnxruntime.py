"""The ONNX Runtime session against the eager one, step by step, and the cache both must agree on."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from vvs.engine import DraftRows, Session, TargetRows
from vvs.errors import BackendError, SettingsError
from vvs.geometry import Geometry
from vvs.runtime.bundle import Bundle
from vvs.runtime.kv_cache import KVCache
from vvs.runtime.onnxruntime_engine import OnnxRuntimeEngine
from vvs.runtime.prompts import encode

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

GEOMETRY = Geometry(2, 4, 2, 2, 1, 1, 2, 2, 2, 2)
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


@pytest.fixture(scope="module")
def engine(tiny_bundle: Path) -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(Bundle.open(tiny_bundle), threads=1)


def target_rows(engine: OnnxRuntimeEngine, past: list[int], T: int, rng: np.random.Generator) -> TargetRows:
    n = len(past)
    ancestors = np.broadcast_to(np.tri(T, dtype=np.bool_), (n, T, T)).copy()
    ancestors[:, -1, 1:-1] = False  # the last row is a second child of the first
    return TargetRows(
        tokens=rng.integers(engine.geometry.vocabulary, size=(n, T)),
        positions=np.array(past)[:, None] + np.minimum(np.arange(T), T - 2),
        ancestors=ancestors,
        past_length=np.array(past),
        cfg_scale=np.linspace(1, 3, n, dtype=np.float32),
    )


def draft_rows(engine: OnnxRuntimeEngine, past: list[int], count: list[int], seed: int) -> DraftRows:
    rng = np.random.default_rng(seed)
    n, A, D = len(past), max(count), engine.geometry.hidden
    return DraftRows(
        features=rng.normal(size=(2 * n, A, D)).astype(np.float32),
        tokens=rng.integers(engine.geometry.vocabulary, size=(n, A)),
        positions=np.array(past)[:, None] + 1 + np.arange(A),
        count=np.array(count),
        past_length=np.array(past),
        cfg_scale=np.full(n, 2, np.float32),
        temperature=np.linspace(0.8, 1, n, dtype=np.float32),
        top_p=np.ones(n, np.float32),
    )


def test_answers_as_the_eager_engine(
    engine: OnnxRuntimeEngine, tiny_models: ModelSet, tiny_bundle: Path
) -> None:
    from vvs.export.eager import EagerEngine

    conditioning = encode(Bundle.open(tiny_bundle), ["a red dress", "shirt", "blue shoe"])
    sessions: list[Session] = [engine.open(3), EagerEngine(tiny_models).open(3)]
    P = engine.geometry.prompt_length

    def compare(results: list[tuple[np.ndarray, ...]]) -> None:
        for ours, theirs in zip(*results, strict=True):
            if ours.dtype.kind == "f":
                np.testing.assert_allclose(ours, theirs, **TOLERANCE)
            else:
                np.testing.assert_array_equal(ours, theirs)

    scale = np.array([1, 2, 3], np.float32)
    compare([session.prefill(conditioning, scale) for session in sessions])
    # Whole batches, parts of it, other orders, the same part twice in a row: all over the same caches.
    lengths = np.full(3, P)
    drafted = np.zeros(3, np.int64)
    for step, rows in enumerate(([0, 1, 2], [2, 0], [2, 0], [0], [1, 2], [0, 1, 2])):
        inputs = target_rows(engine, lengths[rows].tolist(), 4, np.random.default_rng(step))
        picked = np.array(rows)
        compare([session.verify(picked, inputs) for session in sessions])
        kept = [np.array([0, 1, 3])[: 1 + (step + i) % 3] for i in range(len(rows))]
        for session in sessions:
            session.commit(picked, kept, lengths[picked])
        lengths[picked] += [keep.size for keep in kept]
        counts = [1 + (step + i) % 2 for i in range(len(rows))]
        drafting = draft_rows(engine, drafted[picked].tolist(), counts, step)
        compare([session.draft(picked, drafting, "tiny") for session in sessions])
        drafted[picked] += counts
    assert all(session.engine_seconds > 0 for session in sessions)


def test_the_root_of_a_padded_request_is_its_last_valid_token(engine: OnnxRuntimeEngine) -> None:
    inputs = draft_rows(engine, [0], [3], seed=0)
    inputs.tokens[0] = [1, 2, 3]
    session = engine.open(1)
    for count in (2, 3):
        padded = inputs._replace(count=np.array([count]))
        assert session.draft(np.array([0]), padded, next(iter(engine.trees))).tokens[0, 0] == count


def test_results_outlive_the_next_call(engine: OnnxRuntimeEngine, tiny_bundle: Path) -> None:
    session = engine.open(1)
    scale = np.ones(1, np.float32)
    first = session.prefill(encode(Bundle.open(tiny_bundle), ["red dress"]), scale)
    P = engine.geometry.prompt_length
    rows = np.array([0])
    one = session.verify(rows, target_rows(engine, [P], 4, np.random.default_rng(0)))
    before = (first.logits.copy(), one.logits.copy(), one.features.copy())
    session.verify(rows, target_rows(engine, [P], 4, np.random.default_rng(1)))
    for kept, now in zip(before, (first.logits, one.logits, one.features), strict=True):
        np.testing.assert_array_equal(kept, now)


def test_a_closed_session_serves_the_next_run_of_its_size(
    engine: OnnxRuntimeEngine, tiny_bundle: Path
) -> None:
    conditioning = encode(Bundle.open(tiny_bundle), ["red dress", "blue shoe"])
    scale, rows, P = np.ones(2, np.float32), np.arange(2), engine.geometry.prompt_length

    def run(session: Session) -> tuple[np.ndarray, ...]:
        session.prefill(conditioning, scale)
        inputs = target_rows(engine, [P, P], 4, np.random.default_rng(0))
        result = session.verify(rows, inputs)
        session.commit(rows, [np.arange(2)] * 2, np.array([P, P]))
        # One request alone: what its sequence holds is gathered, also what an earlier run had gathered.
        alone = session.verify(rows[1:], target_rows(engine, [P + 2], 4, np.random.default_rng(1)))
        return (*result, *alone)

    first = engine.open(2)
    expected = run(first)
    first.close()
    second = engine.open(2)
    assert second is first
    assert second.engine_seconds == 0
    with pytest.raises(BackendError, match="commit needs a target call"):
        second.commit(rows, [rows, rows], np.array([P, P]))
    third = engine.open(2)  # while the second is under way
    assert third is not second
    for session in (second, third):
        for ours, theirs in zip(run(session), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        session.close()
        session.close()
    assert engine.open(2) is third
    assert engine.open(2) is not second  # one is kept, and it was taken


def test_an_engine_that_is_let_go_is_freed_at_once(tiny_bundle: Path) -> None:
    """Gigabytes must not wait for the garbage collector, nor for a session that is still open."""
    engine = OnnxRuntimeEngine(Bundle.open(tiny_bundle), threads=1)
    engine.open(1).close()
    last, seen = engine.open(2), weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert seen() is None
    finally:
        gc.enable()
    last.close()


def test_bad_calls_are_sentences(engine: OnnxRuntimeEngine, tiny_bundle: Path) -> None:
    with pytest.raises(SettingsError, match=r"batch of 5 requests .* takes 1\.\.4"):
        engine.open(5)
    with pytest.raises(SettingsError, match=r"must be \[R, 36\]"):
        engine.decode_image(np.zeros((1, 35), np.int64))
    with pytest.raises(SettingsError, match="threads is 0"):
        OnnxRuntimeEngine(Bundle.open(tiny_bundle), threads=0)
    session = engine.open(1)
    with pytest.raises(BackendError, match="commit needs a target call"):
        session.commit(np.array([0]), [np.array([0])], np.array([0]))
    with pytest.raises(SettingsError, match="unknown draft tree 'oak'; this bundle has tiny"):
        session.draft(np.array([0]), draft_rows(engine, [0], [1], 0), "oak")
    with pytest.raises(BackendError, match="the graph 'encode_prompt' failed"):
        session.prefill({}, np.ones(1, np.float32))


def new_rows(requests: int, T: int, value: float) -> np.ndarray:
    # [2 L, g n, H, T, Dh]; every row says which layer, sequence and row it is.
    shape = (2, 2 * requests, 1, T, 2)
    return value + np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_cache_gathers_and_tops_up() -> None:
    cache = KVCache(GEOMETRY, 1, 3, "float32")
    everyone = np.arange(3)
    cache.append(everyone, new_rows(3, 2, 0), [np.arange(2)] * 3, np.zeros(3, np.int64))
    assert cache.is_whole(everyone)
    assert not cache.is_whole(np.array([0, 2]))
    assert not cache.is_whole(np.array([2, 1, 0]))

    def check(rows: list[int], lengths: list[int]) -> None:
        cache.gather(np.array(rows), np.array(lengths))
        memory, whole = cache.gathered(len(rows)), cache.whole()
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            for ours, theirs in ((i, row), (len(rows) + i, 3 + row)):
                np.testing.assert_array_equal(memory[:, ours, :, :length], whole[:, theirs, :, :length])

    check([2, 0], [2, 2])
    some = np.array([2, 0])
    cache.append(some, new_rows(2, 3, 100), [np.array([0, 2]), np.array([1])], np.array([2, 2]))
    np.testing.assert_array_equal(cache.whole()[:, 2, :, 2:4], new_rows(2, 3, 100)[:, 0][:, :, [0, 2]])
    check([2, 0], [4, 3])
    check([0], [3])
    check([1, 2], [2, 4])
    # A request that is rewritten is copied again.
    cache.append(np.array([2]), new_rows(1, 1, 500), [np.array([0])], np.array([1]))
    check([1, 2], [2, 2])


def test_cache_refuses_what_it_cannot_hold() -> None:
    cache = KVCache(GEOMETRY, 1, 1, "float32")
    with pytest.raises(BackendError, match="8 rows per sequence cannot hold 9"):
        cache.append(np.array([0]), new_rows(1, 2, 0), [np.arange(2)], np.array([7]))
