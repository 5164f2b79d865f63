"""The commit kernel against numpy: rows of any size, at any alignment, spread over any number of blocks."""

from __future__ import annotations

import numpy as np
from device_state import DeviceState
from hypothesis import given, settings
from hypothesis import strategies as st

from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.feature_cache import FeatureCache
from vvs.runtime.kernels.state import Counter
from vvs.runtime.kernels.table import COMMIT, DRAFT_INPUTS

CODEBOOK = Codebook.from_latents(np.random.default_rng(0).normal(size=(5, 3)), 2)


def bytes_at(rng: np.random.Generator, shape: tuple[int, ...], offset: int) -> np.ndarray:
    """Random bytes that start ``offset`` behind an address of 16."""
    memory = rng.integers(0, 256, int(np.prod(shape)) + 32, np.uint8)
    start = -memory.ctypes.data % 16 + offset
    return memory[start : start + int(np.prod(shape))].reshape(shape)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_land_where_they_belong(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    R, g, tensors, heads = (data.draw(st.integers(1, 3)) for _ in range(4))
    T, capacity = data.draw(st.integers(1, 6)), 20
    row_bytes = data.draw(st.sampled_from([1, 2, 6, 12, 16, 32, 48]))
    padding = data.draw(st.sampled_from([0, 3, 16]))
    longest, counts = 4, rng.integers(0, T + 1, R)
    state = DeviceState([GenerationConfig(tree="tree")] * R, CODEBOOK, nodes=9, longest_path=longest)
    identity = data.draw(st.booleans())
    kept = [np.arange(n) if identity else np.sort(rng.choice(T, n, replace=False)) for n in counts.tolist()]
    starts = rng.integers(0, capacity - T, R)
    for i in range(R):
        state["kept"][i, : counts[i]] = kept[i]
        state.set_counters(i, drafter_rows=int(starts[i] + counts[i]), drafted=int(counts[i]))
    shape = (g, R, heads)
    new = bytes_at(
        rng, (tensors, g * R * heads * T * row_bytes + padding), data.draw(st.sampled_from([0, 4, 5]))
    )
    cache = bytes_at(rng, (tensors, g * R * heads * capacity * row_bytes + padding), 0)
    expected = cache.copy()
    rows_of = [row[: row.size - padding].reshape(*shape, T, row_bytes) for row in new]
    cached = [row[: row.size - padding].reshape(*shape, capacity, row_bytes) for row in expected]
    for rows, target in zip(rows_of, cached, strict=True):
        for i in range(R):
            target[:, i, :, starts[i] : starts[i] + counts[i]] = rows[:, i][:, :, kept[i]]
    nothing = np.zeros(1, np.uint8)
    state.launch(
        COMMIT,
        y=data.draw(st.integers(1, 3)),
        new_rows=new,
        cache=cache,
        features=nothing,
        feature_cache=nothing,
        new_stride=new.shape[1],
        cache_stride=cache.shape[1],
        requests=R,
        guidance=g,
        tensors=tensors,
        heads=heads,
        rows=T,
        capacity=capacity,
        row_bytes=row_bytes,
        feature_bytes=0,
        kept_capacity=0 if identity else state.sizes.kept_capacity,
        end_column=int(Counter.DRAFTER_ROWS),
        count_column=int(Counter.DRAFTED),
    )
    assert (cache == expected).all()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_features_come_back_as_from_the_cache_in_numpy(data: st.DataObject) -> None:
    """Pushes of any length, then as many of the newest as are asked for; the last is repeated if need be."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    g, D, longest, T = data.draw(st.integers(1, 2)), 3, data.draw(st.integers(2, 5)), 9
    state = DeviceState(
        [GenerationConfig(tree="tree")] * 2,
        CODEBOOK,
        nodes=9,
        longest_path=longest,
        guidance=g,
        feature_bytes=4 * D,
    )
    caches = [FeatureCache(longest - 1) for _ in range(2)]
    seen = [0, 0]
    nothing = np.zeros(1, np.uint8)
    for _ in range(data.draw(st.integers(1, 5))):
        features = rng.normal(size=(g, 2, T, D)).astype(np.float32)
        for i in range(2):
            count = data.draw(st.integers(0 if seen[i] else 1, min(T, 2 * longest - 1)))
            kept = np.sort(rng.choice(T, count, replace=False))
            state["kept"][i, :count] = kept
            seen[i] += count
            state.set_counters(i, kept=count, features=seen[i], target_rows=count)
            if count:
                caches[i].push(features[:, i, kept])
        state.launch(
            COMMIT,
            new_rows=nothing,
            cache=nothing,
            features=features.view(np.uint8),
            new_stride=0,
            cache_stride=0,
            tensors=0,
            heads=1,
            rows=T,
            capacity=1,
            row_bytes=4,
            end_column=int(Counter.TARGET_ROWS),
            count_column=int(Counter.KEPT),
        )
    wanted = data.draw(st.integers(1, longest - 1))
    for i in range(2):
        state.stand(i, known=[1] * 20)
        state.set_counters(i, pending=wanted)
    A = state.sizes.draft_capacity
    out = np.full((g, 2, A, D), np.nan, np.float32)
    integers = {name: np.zeros((g * 2, A), np.int64) for name in ("tokens", "positions")}
    lengths = {name: np.zeros(g * 2, np.int64) for name in ("count", "past_length", "root")}
    state.launch(DRAFT_INPUTS, **integers, **lengths, features=out.view(np.uint8), rows=A, tree=0)
    for i in range(2):
        assert (out[:, i, :wanted] == caches[i].stale(wanted)).all()
        assert (out[:, i, wanted:] == 0).all()
