"""Step times: how long each kind of step takes on an engine, measured by itself."""

from collections.abc import Callable
from contextlib import closing
from time import perf_counter

import numpy as np

from vvs.engine import Conditioning, DraftRows, Engine, Session, TargetRows
from vvs.tree_shape import TreeShape

REPEATS = 20
WARM_UP = 3


def step_times(engine: Engine, conditioning: Conditioning, tree: str) -> dict[str, float]:
    """Median seconds of each kind of step of one request, named as in :mod:`vvs.benchmarks.roofline`.

    Args:
        engine: what is measured, host work of its session included.
        conditioning: inputs of the prompt encoder for one prompt.
        tree: a draft tree of the engine.

    """
    shape, P = engine.trees[tree], engine.geometry.prompt_length
    chain = shape.longest_path - 1
    rows = np.zeros(1, np.int64)
    with closing(engine.open(1)) as session:

        def prefill() -> None:
            session.prefill(conditioning, np.ones(1, np.float32))

        seconds = {"prefill": _median(prefill)}
        for kind, T in (("AR", 1), ("verify", shape.nodes), ("verify after a skip", chain + shape.nodes)):
            inputs = _target_rows(T, P)
            seconds[kind] = _median(lambda inputs=inputs: session.verify(rows, inputs))  # type: ignore[misc]
        seconds["draft"] = _median(_drafting(session, engine, shape, tree))
    return seconds


def _median(work: Callable[[], object]) -> float:
    for _ in range(WARM_UP):
        work()
    seconds = []
    for _ in range(REPEATS):
        start = perf_counter()
        work()
        seconds.append(perf_counter() - start)
    return float(np.median(seconds))


def _target_rows(T: int, P: int) -> TargetRows:
    return TargetRows(
        tokens=np.zeros((1, T), np.int64),
        positions=P + np.arange(T)[None],
        ancestors=np.tri(T, dtype=np.bool_)[None],
        past_length=np.array([P]),
        cfg_scale=np.full(1, 2, np.float32),
    )


def _drafting(session: Session, engine: Engine, shape: TreeShape, tree: str) -> Callable[[], object]:
    A, g, D = shape.longest_path, engine.geometry.guidance_rows, engine.geometry.hidden
    features = np.random.default_rng(0).normal(size=(g, A, D)).astype(np.float32)
    inputs = DraftRows(
        features=features,
        tokens=np.zeros((1, A), np.int64),
        positions=1 + np.arange(A)[None],
        count=np.array([A]),
        past_length=np.zeros(1, np.int64),
        cfg_scale=np.full(1, 2, np.float32),
        temperature=np.ones(1, np.float32),
        top_p=np.ones(1, np.float32),
        noise=np.zeros((1, shape.levels, engine.geometry.vocabulary), np.float32) if shape.coupled else None,
    )
    return lambda: session.draft(np.zeros(1, np.int64), inputs, tree)
