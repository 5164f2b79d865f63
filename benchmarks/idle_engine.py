"""IdleEngine: answers every call at once with made-up arrays, so that what is left is the loop itself.

It stands for no hardware and runs no model: only the time outside its calls means anything.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from vvs.arrays import BoolArray, Float32Array, IntArray
from vvs.engine import Conditioning, DraftResult, DraftRows, TargetResult, TargetRows
from vvs.errors import SettingsError
from vvs.geometry import Geometry
from vvs.tree_shape import TreeShape

FAVOUR = 9.0
"""Added to the logits of all drafted tokens, so that some are accepted."""
HIDDEN = 64
SEED = 0


class IdleEngine:
    """An engine of one tree; its logits are noise that favours whatever was drafted."""

    def __init__(self, grid: int, vocabulary: int, tree: TreeShape) -> None:
        self.geometry = Geometry(
            grid=grid, vocabulary=vocabulary, code_dim=8, prompt_length=4, layers=1, heads=1,
            head_dim=HIDDEN, hidden=HIDDEN, guidance_rows=2, image_size=16 * grid,
        )  # fmt: skip
        self.trees: Mapping[str, TreeShape] = {tree.name: tree}

    def open(self, requests: int) -> "IdleSession":
        """Make a session."""
        return IdleSession(self.geometry, self.trees, requests)

    def decode_image(self, tokens: IntArray) -> Float32Array:
        """Refuse: nothing is drawn."""
        raise SettingsError("the idle engine draws no images; it only times the loop")


class IdleSession:
    """Counts the time of its own calls as engine time."""

    def __init__(self, geometry: Geometry, trees: Mapping[str, TreeShape], requests: int) -> None:
        self._geometry = geometry
        self._requests = requests
        self._rng = np.random.default_rng(SEED)
        self._grown = {name: _grow(shape) for name, shape in trees.items()}
        self._noise = self._rng.normal(size=geometry.vocabulary).astype(np.float32)
        self.engine_seconds = 0.0

    def prefill(self, conditioning: Conditioning, cfg_scale: Float32Array) -> TargetResult:
        """Answer for the prompts; arguments as :meth:`vvs.engine.Session.prefill`."""
        start = perf_counter()
        result = self._answer(self._requests, self._geometry.prompt_length)
        self.engine_seconds += perf_counter() - start
        return result

    def verify(self, rows: IntArray, inputs: TargetRows) -> TargetResult:
        """Answer for T rows of n requests."""
        start = perf_counter()
        result = self._answer(*inputs.tokens.shape)
        for logits, tokens in zip(result.logits, inputs.tokens, strict=True):
            logits[:, tokens] += FAVOUR
        self.engine_seconds += perf_counter() - start
        return result

    def commit(self, rows: IntArray, kept: Sequence[IntArray], past_length: IntArray) -> None:
        """Keep nothing: there is no cache."""

    def draft(self, rows: IntArray, inputs: DraftRows, tree: str) -> DraftResult:
        """Draft the same tree for everyone, with other tokens each time."""
        start = perf_counter()
        n, (parents, depth, ancestors) = len(rows), self._grown[tree]
        tokens = self._rng.integers(self._geometry.vocabulary, size=(n, len(parents)))
        tokens[:, 0] = inputs.tokens[np.arange(n), inputs.count - 1]
        result = DraftResult(
            tokens=tokens,
            parents=np.broadcast_to(parents, tokens.shape),
            depth=np.broadcast_to(depth, tokens.shape),
            ancestors=np.broadcast_to(ancestors, (n, *ancestors.shape)),
            scores=np.broadcast_to(-depth.astype(np.float32), tokens.shape),
        )
        self.engine_seconds += perf_counter() - start
        return result

    def close(self) -> None:
        """Give nothing back: there is nothing."""

    def _answer(self, n: int, T: int) -> TargetResult:
        logits = np.tile(self._noise, (n, T, 1))
        features = np.zeros((self._geometry.guidance_rows * n, T, self._geometry.hidden), np.float32)
        return TargetResult(logits, features)


def _grow(shape: TreeShape) -> tuple[IntArray, IntArray, BoolArray]:
    """Parents, depths and ancestors of a tree whose first path is as long as any, the rest spread evenly."""
    parents = list(range(-1, min(shape.longest_path, shape.nodes) - 1))
    depth = list(range(len(parents)))
    children = [1] * (len(parents) - 1) + [shape.k]
    node = 0
    while len(parents) < shape.nodes:
        if depth[node] >= shape.longest_path - 1 or children[node] >= shape.k:
            node += 1
            continue
        children[node] += 1
        children.append(0)
        parents.append(node)
        depth.append(depth[node] + 1)
    ancestors = np.eye(shape.nodes, dtype=np.bool_)
    for child, parent in enumerate(parents[1:], start=1):
        ancestors[child] |= ancestors[parent]
    return np.array(parents), np.array(depth), ancestors
