"""Rows: the inputs of drafting and target calls, assembled from the requests that take part.

Requests of different lengths are padded to the longest; a padded target row sees itself only.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vvs.arrays import BoolArray, FeatureArray, Float32Array, IntArray
from vvs.branching import TargetLayout
from vvs.engine import DraftRows, TargetRows
from vvs.request import Request
from vvs.tree import DraftTree


class TargetSpan(NamedTuple):
    """Where one request's rows lie among the T rows of a target call."""

    chain: int
    tree: int

    def kept(self, nodes: IntArray) -> IntArray:
        """Rows of the chain and of the tree nodes ``nodes``, in order."""
        return np.concatenate([np.arange(self.chain), self.chain + nodes]) if self.chain else nodes


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
    parts = [
        _TargetPart(
            np.concatenate([request.chain, request.tree.tokens]) if span.chain else request.tree.tokens,
            request.progress.root_position,
            target_layout(request.tree, span.chain),
        )
        for request, span in zip(cohort.requests, spans, strict=True)
    ]
    return TargetRows(*_together(parts), cohort.target_rows, cohort.cfg_scale), spans


class _TargetPart(NamedTuple):
    """One request's share of a target call."""

    tokens: IntArray  # [chain + N]
    root_position: int
    layout: TargetLayout


def _together(parts: Sequence[_TargetPart]) -> tuple[IntArray, IntArray, BoolArray]:
    """Tokens and positions ``[n, T]`` and ancestors ``[n, T, T]``; those of a single request as they are."""
    if len(parts) == 1:
        tokens, root, (offsets, ancestors) = parts[0]
        return tokens[None], (offsets + root)[None], ancestors[None]
    n, T = len(parts), max(part.tokens.size for part in parts)
    of_all = np.zeros((n, T), np.int64), np.empty((n, T), np.int64), np.zeros((n, T, T), np.bool_)
    for (tokens, root, (offsets, ancestors)), *mine in zip(parts, *of_all, strict=True):
        end = tokens.size
        mine[0][:end] = tokens
        np.add(offsets, root, out=mine[1][:end])
        mine[2][:end, :end] = ancestors
        if end < T:
            mine[1][end:] = root
            padding = np.arange(end, T)
            mine[2][padding, padding] = True
    return of_all


def target_layout(tree: DraftTree, chain: int) -> TargetLayout:
    """How a chain of this length and the tree's nodes lie; kept with the tree's branching, which fixes it."""
    layout = tree.branching.layouts.get(chain)
    if layout is None:
        rows = chain + tree.nodes
        ancestors = np.tri(rows, dtype=np.bool_)
        ancestors[chain:, chain:] = tree.ancestors
        offsets = np.concatenate([np.arange(-chain, 0), tree.depth])
        for array in (offsets, ancestors):
            array.flags.writeable = False
        layout = tree.branching.layouts[chain] = TargetLayout(offsets, ancestors)
    return layout


def draft_rows(cohort: Cohort) -> DraftRows:
    """Assemble a drafting call over what each request's drafter has yet to consume."""
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
    )


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
