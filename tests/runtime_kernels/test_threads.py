"""Blocks of real threads: the same results, no race under ThreadSanitizer, and a missing barrier is seen."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from device_state import DeviceState
from test_accept import CODEBOOK, V
from toy_engine import grow_tree

from vvs.acceptance import Exact, Lantern, LanternPlusPlus
from vvs.config import GenerationConfig
from vvs.errors import BackendError
from vvs.runtime.device.calls import Kernel
from vvs.runtime.kernels.host_threads import ThreadedLaunch, run_threaded
from vvs.runtime.kernels.state import Counter
from vvs.runtime.kernels.table import (
    ACCEPT,
    BEGIN,
    COMMIT,
    DECIDE,
    DRAFT_INPUTS,
    KERNELS,
    PROPOSE,
    PROPOSE_ROOT,
    SIMILARITY,
    SKIP,
    TARGET_INPUTS,
)
from vvs.sampling import Sampling
from vvs.selection import MostConfidentPath, RandomPath, SampledPath
from vvs.skipping import Dynamic, Uniform
from vvs.tree_shape import TreeShape

SHAPE = TreeShape(3, 2, 14)
CONFIGS = [
    GenerationConfig(Sampling(1.0, top_k=9, top_p=0.8), tree="tree", acceptance=Lantern(6, 0.3)),
    GenerationConfig(Sampling(0), tree="tree", acceptance=LanternPlusPlus(6, 4.0)),
    GenerationConfig(Sampling(0), tree="tree"),
    GenerationConfig(tree="tree", acceptance=Exact(), skipping=Uniform(2), selector=SampledPath()),
    GenerationConfig(tree="tree", skipping=Dynamic(-1), selector=MostConfidentPath()),
    GenerationConfig(tree="tree", skipping=Uniform(2), selector=RandomPath()),
    GenerationConfig(),
]
GREEDY = 1
"""The first of two requests that decode greedily."""

THREADS = [3, 8, 33]


def prepared(kernel: Kernel) -> tuple[DeviceState, dict[str, object]]:
    """A batch in the state in which a kernel meets it, and what the kernel is given besides."""
    rng = np.random.default_rng(0)
    R, T, D = len(CONFIGS), 2 + SHAPE.nodes, 6
    state = DeviceState(CONFIGS, CODEBOOK, nodes=SHAPE.nodes, longest_path=4, guidance=2, feature_bytes=4 * D)
    trees = [grow_tree(rng, SHAPE, V, int(rng.integers(V))) for _ in CONFIGS]
    for i, tree in enumerate(trees):
        state.stand(i, known=rng.integers(0, V, 12).tolist(), steps=3, chain=i % 3)
        state.give_tree(i, tree)
        state.give_uniforms(i, rng.random(40).tolist())
        state.set_counters(i, pending=3, features=7, kept=2, drafted=2)
    bytes_of = {"feature_cache": state["feature_cache"], "embeddings": np.zeros((V, 8), np.uint8)}
    bytes_of["feature_cache"][...] = rng.integers(0, 256, bytes_of["feature_cache"].shape)
    logits = (rng.normal(size=(R, T, V)) * 2).astype(np.float32)
    for i in (GREEDY, GREEDY + 1):  # let drafted tokens win
        tree, chain = trees[i], i % 3
        logits[i, chain + tree.parents[1:], tree.tokens[1:]] += 9
    draft_rows = {name: np.zeros((2 * R, 4), np.int64) for name in ("tokens", "positions")}
    draft_rows |= {name: np.zeros(2 * R, np.int64) for name in ("count", "past_length", "root")}
    names = ("tokens", "parents", "depth", "ancestors", "scores")
    drafted = {f"drafted_{name}": np.stack([getattr(tree, name) for tree in trees]) for name in names}
    drafted["drafted_scores"] = drafted["drafted_scores"].astype(np.float32)
    extra: dict[str, dict[str, object]] = {
        BEGIN.name: {"logits": logits, "rows": T},
        ACCEPT.name: {"logits": logits, "rows": T},
        DRAFT_INPUTS.name: {
            **draft_rows,
            "features": np.zeros((2 * R, 4, 4 * D), np.uint8),
            "rows": 4,
            "tree": 0,
        },
        PROPOSE.name: {**drafted, "tree": 0, "drafted_nodes": SHAPE.nodes},
        TARGET_INPUTS.name: {
            "embeddings": bytes_of["embeddings"],
            "embeds": np.zeros((2 * R, T, 8), np.uint8),
            "positions": np.zeros((2 * R, T), np.int64),
            "ancestors": np.zeros((2 * R, T, T), np.bool_),
            "past_length": np.zeros(2 * R, np.int64),
            "rows": T,
            "embedding_bytes": 8,
        },
        COMMIT.name: {
            "new_rows": rng.integers(0, 256, (2, 2 * R, 2, T, 12), np.uint8),
            "cache": np.zeros((2, 2 * R, 2, 30, 12), np.uint8),
            "features": rng.integers(0, 256, (2 * R, T, 4 * D), np.uint8),
            "new_stride": 2 * R * 2 * T * 12,
            "cache_stride": 2 * R * 2 * 30 * 12,
            "tensors": 2,
            "heads": 2,
            "rows": T,
            "capacity": 30,
            "row_bytes": 12,
            "end_column": int(Counter.TARGET_ROWS),
            "count_column": int(Counter.KEPT),
        },
    }
    if kernel is SKIP:
        state.launch(DECIDE)
    if kernel in (PROPOSE, PROPOSE_ROOT):
        for name in ("tree_tokens", "tree_parents", "tree_depth", "tree_ancestors", "tree_scores", "paths"):
            state[name][...] = 0
    return state, extra.get(kernel.name, {})


def recorded_launch(kernel: Kernel, threads: int) -> ThreadedLaunch:
    state, extra = prepared(kernel)
    state.recorded, state.threads = [], threads
    state.launch(kernel, **extra)
    return state.recorded[0]


@pytest.mark.parametrize("threads", THREADS)
def test_real_threads_agree_with_one_and_do_not_race(threads: int) -> None:
    launches = [recorded_launch(kernel, threads) for kernel in KERNELS]
    ran = run_threaded(launches)
    assert ran.races == 0, ran.report[:4000]
    for kernel, launch in zip(KERNELS, launches, strict=True):
        state, extra = prepared(kernel)
        state.launch(kernel, **extra)
        for parameter, threaded in zip(kernel.parameters, launch.arguments, strict=True):
            if not parameter.writes:
                continue
            alone = extra.get(parameter.name, state.arrays.get(parameter.name))
            message = f"{parameter.name} of {kernel.name}"
            if threaded.dtype.kind == "f":
                np.testing.assert_allclose(threaded, alone, rtol=1e-12, atol=1e-15, err_msg=message)
            else:
                assert (threaded == alone).all(), message


BROKEN = ("VVS_OMIT_REMOVE_BARRIER", "VVS_OMIT_PROPOSE_BARRIER")


@pytest.mark.parametrize("kernel", [ACCEPT, PROPOSE])
def test_a_missing_barrier_is_seen(kernel: Kernel) -> None:
    ran = run_threaded([recorded_launch(kernel, 4)], defines=BROKEN)
    assert ran.races > 0
    assert kernel.name in ran.report


def test_every_kernel_writes_something_here() -> None:
    """Otherwise comparing threads with one another would compare nothing."""
    for kernel in KERNELS:
        state, extra = prepared(kernel)
        before = copy.deepcopy({**state.arrays, **extra})
        state.launch(kernel, **extra)
        after = {**state.arrays, **extra}
        changed = [
            parameter.name
            for parameter in kernel.parameters
            if parameter.writes and (after[parameter.name] != before[parameter.name]).any()
        ]
        assert changed, kernel.name


def test_a_run_that_fails_for_another_reason_is_a_sentence() -> None:
    launch = recorded_launch(SIMILARITY, 2)
    unknown = launch._replace(kernel=Kernel("vvs_unknown", launch.kernel.parameters))
    with pytest.raises(BackendError, match="failed on real threads"):
        run_threaded([unknown])
