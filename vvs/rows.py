"""Rows: the inputs of drafting and target calls, assembled from the requests that take part.

Requests of different lengths are padded to the longest; a padded target row sees itself only.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vvs.arrays import FeatureArray, IntArray
from vvs.engine import DraftRows, TargetRows
from vvs.request import Request


class TargetSpan(NamedTuple):
    """Where one request's rows lie among the T rows of a target call."""

    chain: int
    tree: int

    def kept(self, nodes: IntArray) -> IntArray:
        """Rows of the chain and of the tree nodes ``nodes``, in order."""
        return np.concatenate([np.arange(self.chain), self.chain + nodes])


def indices(requests: Sequence[Request]) -> IntArray:
    """Session rows of ``requests``, ``[n]``."""
    return np.array([request.index for request in requests], np.int64)


def target_rows(requests: Sequence[Request]) -> tuple[TargetRows, list[TargetSpan]]:
    """Assemble a target call over each request's chain, then its tree.

    Chain rows are causal. Tree rows see the past, the whole chain and their ancestors.
    """
    spans = [TargetSpan(request.progress.chain, request.tree.nodes) for request in requests]
    n, T = len(requests), max(span.chain + span.tree for span in spans)
    tokens = np.zeros((n, T), np.int64)
    positions = np.empty((n, T), np.int64)
    ancestors = np.zeros((n, T, T), np.bool_)
    ancestors[:, np.arange(T), np.arange(T)] = True
    for i, (request, (chain, tree)) in enumerate(zip(requests, spans, strict=True)):
        root, end = request.progress.root_position, chain + tree
        tokens[i, :chain] = request.chain
        tokens[i, chain:end] = request.tree.tokens
        positions[i, :chain] = np.arange(root - chain, root)
        positions[i, chain:end] = root + request.tree.depth
        positions[i, end:] = root
        ancestors[i, :end, :chain] = np.tri(end, chain, dtype=np.bool_)
        ancestors[i, chain:end, chain:end] = request.tree.ancestors
    return TargetRows(
        tokens=tokens,
        positions=positions,
        ancestors=ancestors,
        past_length=np.array([request.progress.target_rows for request in requests], np.int64),
        cfg_scale=np.array([request.config.cfg_scale for request in requests], np.float32),
    ), spans


def draft_rows(requests: Sequence[Request]) -> DraftRows:
    """Assemble a drafting call over what each request's drafter has yet to consume."""
    counts = [request.pending.tokens.size for request in requests]
    past_length = np.array([request.progress.drafter_rows for request in requests], np.int64)
    features, tokens = _padded(requests, max(counts))
    count = np.array(counts, np.int64)
    # Drafter row i embeds the token at position i + 1. Padded rows repeat the root's position.
    positions = past_length[:, None] + np.minimum(np.arange(1, max(counts) + 1), count[:, None])
    configs = [request.config for request in requests]
    return DraftRows(
        features=features,
        tokens=tokens,
        positions=positions,
        count=count,
        past_length=past_length,
        cfg_scale=np.array([config.draft_cfg_scale for config in configs], np.float32),
        temperature=np.array([config.sampling.temperature for config in configs], np.float32),
        top_p=np.array([config.sampling.top_p for config in configs], np.float32),
    )


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
