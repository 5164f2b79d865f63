"""A batch in the state in which each kernel meets it: every mode, greedy and not, chains, a skipped step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from device_state import DeviceState
from test_accept import CODEBOOK, V
from toy_engine import grow_tree

from vvs.acceptance import Exact, Lantern, LanternPlusPlus
from vvs.config import GenerationConfig
from vvs.runtime.device.calls import Kernel
from vvs.runtime.device.host_graphs import UNSET
from vvs.runtime.kernels.host_threads import ThreadedLaunch
from vvs.runtime.kernels.state import Counter
from vvs.runtime.kernels.table import (
    ACCEPT,
    BEGIN,
    COMMIT,
    DECIDE,
    DRAFT_INPUTS,
    END_STEP,
    NOISE,
    PROPOSE,
    PROPOSE_ROOT,
    ROUTE_DRAFT,
    ROUTE_STEP,
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
    GenerationConfig(Sampling(0.9, top_k=9), tree="tree", acceptance=Lantern(6, 0.4), coupled=True),
]
GREEDY = 1
"""The first of two requests that decode greedily."""


def prepared(kernel: Kernel) -> tuple[DeviceState, dict[str, Any]]:
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
    extra: dict[str, dict[str, Any]] = {
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
        NOISE.name: {"noise": np.ones((R, 3, V), np.float32), "levels": 3},
        ROUTE_DRAFT.name: {"drafts": condition(), "tree": 0},
        ROUTE_STEP.name: {"skips": condition(), "verifies": condition()},
        END_STEP.name: {"running": condition()},
    }
    if kernel in (SKIP, ROUTE_STEP, END_STEP):
        state.launch(DECIDE)
    if kernel in (PROPOSE, PROPOSE_ROOT):
        for name in ("tree_tokens", "tree_parents", "tree_depth", "tree_ancestors", "tree_scores", "paths"):
            state[name][...] = 0
    return state, extra.get(kernel.name, {})


def condition() -> np.ndarray:
    """A condition on the host, where its handle is an address."""
    return np.array([UNSET], np.uint32)


def recorded_launch(kernel: Kernel, threads: int) -> ThreadedLaunch:
    state, extra = prepared(kernel)
    state.recorded, state.threads = [], threads
    state.launch(kernel, **extra)
    return state.recorded[0]


def results(kernel: Kernel, arguments: Sequence[Any]) -> dict[str, np.ndarray]:
    """Of a launch's arguments the arrays that the kernel writes."""
    named = zip(kernel.parameters, arguments, strict=True)
    return {parameter.name: argument for parameter, argument in named if parameter.writes}


def alone(kernel: Kernel) -> dict[str, np.ndarray]:
    """What a kernel writes with one thread per block."""
    state, extra = prepared(kernel)
    state.launch(kernel, **extra)
    return {
        parameter.name: extra.get(parameter.name, state.arrays.get(parameter.name))
        for parameter in kernel.parameters
        if parameter.writes
    }


def assert_same(kernel: Kernel, got: dict[str, np.ndarray], rtol: float) -> None:
    """Compare with one thread per block: integers and bytes exactly, float64 up to rounding."""
    for name, expected in alone(kernel).items():
        message = f"{name} of {kernel.name}"
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(got[name], expected, rtol=rtol, atol=1e-14, err_msg=message)
        else:
            assert (got[name] == expected).all(), message
