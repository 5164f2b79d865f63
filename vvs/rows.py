"""Rows: the inputs of drafting and target calls, assembled from the requests that take part.

Requests of different lengths are padded to the longest; a padded target row sees itself only.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from vvs.arrays import BoolArray, FeatureArray, Float32Array, IntArray
from vvs.engine import DraftRows, TargetRows
from vvs.request import Request
from vvs.tree_shape import TreeShape

CAUSAL_KEPT = 256
"""Shapes of visible chains that are kept: those met last."""


class TargetSpan(NamedTuple):
    """Where one request's rows lie among the T rows of a target call."""

    chain: int
    tree: int

    def kept(self, nodes: IntArray) -> IntArray:
        """Rows of the chain and of the tree nodes ``nodes``, in order."""
        return np.concatenate([np.arange(self.chain), self.chain + nodes])


class Cohort:
    """The n requests of one call, and what their settings come to as arrays: the same in every step."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        configs = [request.config for request in requests]
        self.rows: IntArray = np.array([request.index for request in requests], np.int64)
        """Session rows, ``[n]``."""
        self.cfg_scale = _each(config.cfg_scale for config in configs)
        self.draft_cfg_scale = _each(config.draft_cfg_scale for config in configs)
        self.temperature = _each(config.sampling.temperature for config in configs)
        self.top_p = _each(config.sampling.top_p for config in configs)

    @property
    def target_rows(self) -> IntArray:
        """Rows in the target's KV cache, ``[n]``."""
        return np.array([request.progress.target_rows for request in self.requests], np.int64)


def target_rows(cohort: Cohort) -> tuple[TargetRows, list[TargetSpan]]:
    """Assemble a target call over each request's chain, then its tree.

    Chain rows are causal. Tree rows see the past, the whole chain and their ancestors.
    """
    spans = [TargetSpan(request.progress.chain, request.tree.nodes) for request in cohort.requests]
    if len(spans) == 1 and not spans[0].chain:
        return _lone_tree(cohort), spans
    n, T = len(spans), max(chain + tree for chain, tree in spans)
    tokens = np.zeros((n, T), np.int64)
    positions = np.empty((n, T), np.int64)
    ancestors = np.zeros((n, T, T), np.bool_)
    for i, (request, (chain, tree)) in enumerate(zip(cohort.requests, spans, strict=True)):
        root, end = request.progress.root_position, chain + tree
        if chain:
            tokens[i, :chain] = request.chain
            positions[i, :chain] = np.arange(root - chain, root)
            ancestors[i, :end, :chain] = _causal(end, chain)
        tokens[i, chain:end] = request.tree.tokens
        np.add(request.tree.depth, root, out=positions[i, chain:end])
        ancestors[i, chain:end, chain:end] = request.tree.ancestors
        if end < T:
            positions[i, end:] = root
            padding = np.arange(end, T)
            ancestors[i, padding, padding] = True
    return TargetRows(tokens, positions, ancestors, cohort.target_rows, cohort.cfg_scale), spans


def _lone_tree(cohort: Cohort) -> TargetRows:
    """The rows of a single request without a chain: its tree as it is."""
    (request,) = cohort.requests
    tree, root = request.tree, request.progress.root_position
    return TargetRows(
        tree.tokens[None],
        (tree.depth + root)[None],
        tree.ancestors[None],
        cohort.target_rows,
        cohort.cfg_scale,
    )


def draft_rows(cohort: Cohort, tree: TreeShape, vocabulary: int) -> DraftRows:
    """Assemble a drafting call of a tree of V tokens over what each request's drafter has yet to consume."""
    counts = [request.pending.tokens.size for request in cohort.requests]
    past = [request.progress.drafter_rows for request in cohort.requests]
    A = max(counts)
    features, tokens = _padded(cohort.requests, A)
    # Drafter row i embeds the token at position i + 1. Padded rows repeat the root's position.
    positions = [
        [first + min(row, count) for row in range(1, A + 1)]
        for first, count in zip(past, counts, strict=True)
    ]
    return DraftRows(
        features=features,
        tokens=tokens,
        positions=np.array(positions, np.int64),
        count=np.array(counts, np.int64),
        past_length=np.array(past, np.int64),
        cfg_scale=cohort.draft_cfg_scale,
        temperature=cohort.temperature,
        top_p=cohort.top_p,
        noise=_noise(cohort.requests, tree.levels, vocabulary) if tree.coupled else None,
    )


def _noise(requests: Sequence[Request], levels: int, vocabulary: int) -> Float32Array:
    """Noise ``[n, levels, V]`` of the tokens behind each root; greedy requests have none."""
    noise: Float32Array = np.zeros((len(requests), levels, vocabulary), np.float32)
    for of_request, request in zip(noise, requests, strict=True):
        if request.noise is not None:
            of_request[...] = request.noise.rows(len(request.known), levels)
    return noise


@lru_cache(CAUSAL_KEPT)
def _causal(rows: int, chain: int) -> BoolArray:
    """Who sees whom of a chain ``[rows, chain]``: itself as far as it has come, what follows sees it all."""
    seen = np.tri(rows, chain, dtype=np.bool_)
    seen.flags.writeable = False
    return seen


def _each(settings: Iterable[float]) -> Float32Array:
    array = np.array(list(settings), np.float32)
    array.flags.writeable = False
    return array


def _padded(requests: Sequence[Request], A: int) -> tuple[FeatureArray, IntArray]:
    """Features ``[g n, A, D]`` and tokens ``[n, A]`` to consume; those of a single request as they are."""
    pending = [request.pending for request in requests]
    if len(pending) == 1:
        return pending[0].features, pending[0].tokens[None]
    g, _, D = pending[0].features.shape
    features: FeatureArray = np.zeros((g, len(pending), A, D), pending[0].features.dtype)
    tokens = np.zeros((len(pending), A), np.int64)
    for i, (of_request, next_tokens) in enumerate(pending):
        features[:, i, : next_tokens.size] = of_request
        tokens[i, : next_tokens.size] = next_tokens
    return features.reshape(-1, A, D), tokens
