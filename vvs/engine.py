"""The Engine protocol: what the decoding loop asks of a backend.

The eager PyTorch oracle, ONNX Runtime and every later backend answer it, so tests can compare them.
An engine holds weights; a session holds the KV caches of the R requests of one run. Lengths and
positions are always passed in: a session keeps rows, the loop keeps count.

Shapes: R requests in the session, n requests of one call, g = guidance rows (2 with CFG), T rows of one
target pass, A drafter rows, N tree nodes, P prompt rows, V vocabulary, D hidden. Arrays with a leading
``g * n`` hold the conditional rows of all n requests first, then the unconditional ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from vvs.arrays import BoolArray, FeatureArray, Float32Array, IntArray
from vvs.geometry import Geometry
from vvs.tree_shape import TreeShape

Conditioning = Mapping[str, NDArray[Any]]
"""Inputs of ``encode_prompt`` by name, each ``[R, ...]``; which ones is up to the model family."""


class TargetRows(NamedTuple):
    """Inputs of one target pass over image tokens (AR, verify, verify after skip)."""

    tokens: IntArray  # [n, T]
    positions: IntArray  # [n, T]
    ancestors: BoolArray  # [n, T, T], self included; a padded row sees itself only
    past_length: IntArray  # [n] committed KV rows, the prompt's included
    cfg_scale: Float32Array  # [n]


class TargetResult(NamedTuple):
    """Outputs of one target pass."""

    logits: Float32Array  # [n, T, V] guided
    features: FeatureArray  # [g * n, T, D]


class DraftRows(NamedTuple):
    """Inputs of one drafting call. Row i pairs a feature with the token one position later."""

    features: FeatureArray  # [g * n, A, D]
    tokens: IntArray  # [n, A] the last valid one is the root
    positions: IntArray  # [n, A] position of ``tokens``
    count: IntArray  # type: ignore[assignment]  # [n] valid rows; the rest is padding
    past_length: IntArray  # [n] drafter KV rows committed so far
    cfg_scale: Float32Array  # [n]
    temperature: Float32Array  # [n]; 0 is greedy (log-probabilities of the raw logits)
    top_p: Float32Array  # [n]
    noise: Float32Array | None = None
    """``[n, levels, V]`` noise of the tokens behind the root, level by level; zeros for greedy requests.
    For coupled trees only."""


class DraftResult(NamedTuple):
    """One draft tree per request; node 0 is the root."""

    tokens: IntArray  # [n, N]
    parents: IntArray  # [n, N], parents[:, 0] = -1
    depth: IntArray  # [n, N], depth[:, 0] = 0
    ancestors: BoolArray  # [n, N, N], self included
    scores: Float32Array  # [n, N] cumulative log-probability, 0 at the root


class Session(Protocol):
    """KV caches of the R requests of one run. ``rows`` picks requests by index, in any order."""

    @property
    def engine_seconds(self) -> float:
        """Seconds spent inside graph executions so far, host work excluded."""
        ...

    def prefill(self, conditioning: Conditioning, cfg_scale: Float32Array) -> TargetResult:
        """Encode the prompts of all R requests, run the P prompt rows and commit their KV rows."""
        ...

    def verify(self, rows: IntArray, inputs: TargetRows) -> TargetResult:
        """Run the target on T new rows of the n requests in ``rows``; commits nothing."""
        ...

    def commit(self, rows: IntArray, kept: Sequence[IntArray], past_length: IntArray) -> None:
        """Write new KV rows of the last ``verify`` into the target's cache.

        ``rows`` are those of that call; ``kept[i]`` are the indices (into T) of the rows of request
        ``rows[i]`` that survive, in order; they land at ``past_length[i]`` and up.
        """
        ...

    def draft(self, rows: IntArray, inputs: DraftRows, tree: str) -> DraftResult:
        """Consume ``count`` drafter rows per request (their KV is kept) and draft the tree named ``tree``."""
        ...

    def close(self) -> None:
        """Give the caches back."""
        ...


class Engine(Protocol):
    """A target, its drafter and its image decoder on one backend. Safe to share between threads."""

    @property
    def geometry(self) -> Geometry:
        """Sizes of the models."""
        ...

    @property
    def trees(self) -> Mapping[str, TreeShape]:
        """Draft trees this engine can draft, by name."""
        ...

    def open(self, requests: int) -> Session:
        """Allocate caches for ``requests`` requests."""
        ...

    def decode_image(self, tokens: IntArray) -> Float32Array:
        """Turn complete token grids ``[R, grid * grid]`` into images ``[R, 3, H, W]`` in [-1, 1]."""
        ...
