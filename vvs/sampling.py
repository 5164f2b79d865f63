"""Sampling: from the target's logits to a distribution, and from a distribution to a token.

Pure functions; random numbers are passed in (:mod:`vvs.uniforms`). Everything is computed in float64,
so that the decision does not depend on the order in which a backend sums.
"""

import math
from dataclasses import dataclass

import numpy as np

from vvs.arrays import BoolArray, Float32Array, Float64Array
from vvs.checks import check_integer, check_real
from vvs.errors import BackendError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn from the target's logits."""

    temperature: float = 1.0
    """0 is greedy: the likeliest token, and the other two settings have no effect."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens that holds this much probability; 1 keeps all."""

    def __post_init__(self) -> None:
        check_real("temperature", self.temperature, at_least=0)
        check_integer("top_k", self.top_k, at_least=0)
        check_real("top_p", self.top_p, above=0, at_most=1)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, so that no random number is needed."""
        return self.temperature == 0


def process(logits: Float32Array, sampling: Sampling) -> Float64Array:
    """Turn logits ``[V]`` into probabilities ``[V]``: temperature, top-p, top-k, softmax, in this order.

    Tokens that tie with the k-th likeliest are all kept; on the edge of the nucleus the lower index wins.
    At temperature 0 all probability is on the likeliest token.

    Raises:
        BackendError: the largest logit is not finite, so an engine computed nonsense.

    """
    top = likeliest(logits)
    if sampling.greedy:
        certain = np.zeros(logits.shape[0])
        certain[top] = 1.0
        return certain
    weights = _weights(logits, sampling, logits[top], _kept(logits, sampling, logits[top]))
    weights /= weights.sum()
    return weights


def couple(logits: Float32Array, sampling: Sampling, noise: Float32Array) -> int:
    """Draw a token by the Gumbel-max trick: the argmax of logits over temperature, plus noise.

    The lowest index among equals. With standard Gumbel noise it is distributed as :func:`process` says.

    Args:
        logits: ``[V]``.
        sampling: not greedy.
        noise: ``[V]``.

    Raises:
        BackendError: the largest logit is not finite.

    """
    perturbed = logits.astype(np.float64)
    if sampling.temperature != 1:
        perturbed /= sampling.temperature
    perturbed += noise
    token = int(perturbed.argmax())
    if not math.isfinite(perturbed[token]):
        likeliest(logits)  # raises
    if sampling.top_p == 1 and np.count_nonzero(logits > logits[token]) < (sampling.top_k or logits.size):
        return token  # mostly: it is among those that are kept, which need not be found
    kept = _kept(logits, sampling, logits[likeliest(logits)])
    if kept is not None:
        perturbed[~kept] = -np.inf
    return int(perturbed.argmax())


def likeliest(logits: Float32Array) -> int:
    """Index of the largest logit; the lowest one among equals. Raises BackendError if it is not finite."""
    token = int(logits.argmax())
    if not math.isfinite(logits[token]):
        raise BackendError(
            f"the target returned logits whose maximum is {logits[token]}, not a finite number"
        )
    return token


def sample(probabilities: Float64Array, uniform: float) -> int:
    """Draw a token by inverse CDF in index order: the first whose cumulative sum exceeds ``uniform * sum``.

    Args:
        probabilities: ``[V]``, not necessarily normalised, not all zero.
        uniform: in [0, 1).

    """
    cumulative = probabilities.cumsum(dtype=np.float64)
    token = int(cumulative.searchsorted(uniform * cumulative[-1], side="right"))
    if token == probabilities.shape[0]:  # uniform * sum rounded up to the sum itself
        token = int(np.flatnonzero(probabilities)[-1])
    return token


def _weights(
    logits: Float32Array, sampling: Sampling, peak: np.float32, kept: BoolArray | None = None
) -> Float64Array:
    """Unnormalised probabilities: 1 at the largest logit, ``peak``, and 0 for tokens that are not kept."""
    weights = logits.astype(np.float64)
    weights -= peak
    if sampling.temperature != 1:
        weights /= sampling.temperature
    np.exp(weights, out=weights)
    if kept is not None:
        weights *= kept
    return weights


def _kept(logits: Float32Array, sampling: Sampling, peak: np.float32) -> BoolArray | None:
    """Which tokens survive top-p and top-k, ``[V]``; None when all do.

    Both filters keep a prefix of the tokens in falling order of logit, so the order in which they are
    applied does not matter as long as the nucleus is measured on the unfiltered distribution, as the
    published order does, and only the k likeliest need to be ranked for it.
    """
    V = logits.shape[0]
    considered = logits
    if 0 < sampling.top_k < V:
        ranked = logits.copy()
        ranked.partition(V - sampling.top_k)
        likely: BoolArray = logits >= ranked[V - sampling.top_k]
        if sampling.top_p == 1:
            return likely
        considered = logits[likely]
    elif sampling.top_p == 1:
        return None
    falling = np.sort(considered)[::-1]
    reached = np.cumsum(_weights(falling, sampling, peak))
    bound = sampling.top_p * _weights(logits, sampling, peak).sum()
    # A token stays while its likelier ones weigh less than the bound; the likeliest always does.
    count = 1 + int(np.count_nonzero(reached[:-1] < bound))
    edge = falling[count - 1]
    kept: BoolArray = logits > edge
    level = np.flatnonzero(logits == edge)
    kept[level[: count - np.count_nonzero(kept)]] = True
    return kept
