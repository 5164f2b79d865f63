"""A toy engine that notices wrong bookkeeping.

Its target's logits are a hash-seeded function of exactly the tokens a row can see: committed rows and
ancestors. Every call checks that what a row sees is one token per position without a gap, that lengths
are those of the rows kept, and that the drafter is given the features it should be given. A loop that
loses count either fails an assertion or emits other tokens than plain AR decoding.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from vvs.engine import Conditioning, DraftResult, DraftRows, TargetResult, TargetRows
from vvs.geometry import Geometry
from vvs.tree import DraftTree
from vvs.tree_shape import TreeShape

HIDDEN = 3  # position, digest of all tokens up to it, guidance row


def digest(*what: object) -> int:
    return zlib.crc32(repr(what).encode())


@lru_cache(maxsize=100_000)
def toy_logits(vocabulary: int, prompt: int, prefix: tuple[int, ...], cfg_scale: float) -> np.ndarray:
    """The toy target's guided logits ``[V]`` after ``prefix``."""
    rng = np.random.default_rng(digest(prompt, prefix))
    conditional, unconditional = rng.normal(size=(2, vocabulary)) * 1.5
    return (unconditional + cfg_scale * (conditional - unconditional)).astype(np.float32)


def grow_tree(rng: np.random.Generator, shape: TreeShape, vocabulary: int, root: int) -> DraftTree:
    """A random tree of this shape: at most k children per node with different tokens, total + 1 nodes."""
    k = min(shape.k, vocabulary)
    parents, depth = [-1], [0]
    while len(parents) <= shape.total:
        room = [n for n in range(len(parents)) if parents.count(n) < k and depth[n] < shape.longest_path - 1]
        parent = int(rng.choice(room))
        parents.append(parent)
        depth.append(depth[parent] + 1)
    N = len(parents)
    ancestors, tokens = np.eye(N, dtype=bool), [root] + [0] * (N - 1)
    for node in range(1, N):
        ancestors[node] |= ancestors[parents[node]]
    for node in range(N):
        children = [child for child in range(N) if parents[child] == node]
        for child, token in zip(children, rng.permutation(vocabulary), strict=False):
            tokens[child] = int(token)
    return DraftTree(
        np.array(tokens), np.array(parents), np.array(depth), ancestors, -np.array(depth, np.float32)
    )


class ToyEngine:
    def __init__(
        self,
        grid: int,
        vocabulary: int,
        trees: Sequence[TreeShape] = (),
        guidance_rows: int = 2,
        prompt_length: int = 3,
    ) -> None:
        self.geometry = Geometry(
            grid, vocabulary, 4, prompt_length, 1, 1, 1, HIDDEN, guidance_rows, grid * 16
        )
        self.trees: Mapping[str, TreeShape] = {shape.name: shape for shape in trees}
        self.sessions: list[ToySession] = []

    def open(self, requests: int) -> ToySession:
        self.sessions.append(ToySession(self, requests))
        return self.sessions[-1]

    def decode_image(self, tokens: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class ToySession:
    def __init__(self, engine: ToyEngine, requests: int) -> None:
        self.engine, self.closed, self.calls = engine, False, 0
        self.engine_seconds = 0.0
        self.prompts = [0] * requests
        self.committed: list[list[int]] = [[] for _ in range(requests)]
        self.drafted: list[list[int]] = [[] for _ in range(requests)]
        """Tokens the drafter has consumed for image positions."""
        self.last: tuple[np.ndarray, TargetRows] | None = None
        self.verified_chains: list[int] = []
        self.scales: dict[str, set[float]] = {"draft": set(), "target": set()}
        """Guidance scales that were asked for."""

    def close(self) -> None:
        self.closed = True

    def feature(self, request: int, prefix: tuple[int, ...]) -> np.ndarray:
        """Features ``[g, D]`` at the position of the last token of ``prefix``."""
        position = self.engine.geometry.prompt_length + len(prefix) - 1
        mark = digest(self.prompts[request], prefix) % 2**20
        g = self.engine.geometry.guidance_rows
        return np.array([[position, mark, row] for row in range(g)], np.float32)

    def prefill(self, conditioning: Conditioning, cfg_scale: np.ndarray) -> TargetResult:
        g, R = self.engine.geometry, len(self.prompts)
        self.prompts = [int(prompt) for prompt in conditioning["prompt"]]
        logits = np.zeros((R, g.prompt_length, g.vocabulary), np.float32)
        features = np.zeros((g.guidance_rows, R, g.prompt_length, HIDDEN), np.float32)
        for r in range(R):
            logits[r, -1] = toy_logits(g.vocabulary, self.prompts[r], (), float(cfg_scale[r]))
            for p in range(g.prompt_length):
                features[:, r, p, 0] = p
            features[:, r, -1] = self.feature(r, ())
        self.engine_seconds += 1e-6
        return TargetResult(logits, features.reshape(-1, g.prompt_length, HIDDEN))

    def verify(self, rows: np.ndarray, inputs: TargetRows) -> TargetResult:
        g = self.engine.geometry
        P, (n, T) = g.prompt_length, inputs.tokens.shape
        assert inputs.positions.shape == (n, T)
        assert inputs.ancestors.shape == (n, T, T)
        assert len(set(rows.tolist())) == n == len(rows)
        self.scales["target"] |= set(inputs.cfg_scale.tolist())
        logits = np.zeros((n, T, g.vocabulary), np.float32)
        features = np.zeros((g.guidance_rows, n, T, HIDDEN), np.float32)
        for i, r in enumerate(rows):
            assert inputs.past_length[i] == P + len(self.committed[r])
            for t in range(T):
                seen = np.flatnonzero(inputs.ancestors[i, t])
                assert t in seen
                if t and seen.size == 1:
                    assert not inputs.ancestors[i, :t, t].any()  # padding
                    continue
                order = seen[np.argsort(inputs.positions[i, seen])]
                start = P + len(self.committed[r])
                assert inputs.positions[i, order].tolist() == list(range(start, start + order.size))
                assert order[-1] == t
                prefix = (*self.committed[r], *inputs.tokens[i, order].tolist())
                logits[i, t] = toy_logits(g.vocabulary, self.prompts[r], prefix, float(inputs.cfg_scale[i]))
                features[:, i, t] = self.feature(r, prefix)
        self.last = (rows, inputs)
        self.engine_seconds += 1e-6
        return TargetResult(logits, features.reshape(-1, T, HIDDEN))

    def commit(self, rows: np.ndarray, kept: Sequence[np.ndarray], past_length: np.ndarray) -> None:
        assert self.last is not None
        assert rows.tolist() == self.last[0].tolist()
        P = self.engine.geometry.prompt_length
        for i, r in enumerate(rows):
            assert past_length[i] == P + len(self.committed[r])
            self.committed[r] += self.last[1].tokens[i, kept[i]].tolist()
            assert P + len(self.committed[r]) <= self.engine.geometry.capacity
        self.last = None

    def draft(self, rows: np.ndarray, inputs: DraftRows, tree: str) -> DraftResult:
        g, n = self.engine.geometry, len(rows)
        P, A = g.prompt_length, inputs.tokens.shape[1]
        features = inputs.features.reshape(g.guidance_rows, n, A, HIDDEN)
        self.scales["draft"] |= set(inputs.cfg_scale.tolist())
        grown = []
        for i, r in enumerate(rows):
            count = int(inputs.count[i])
            past = int(inputs.past_length[i])
            tokens, positions = inputs.tokens[i, :count].tolist(), inputs.positions[i, :count].tolist()
            assert positions == list(range(past + 1, past + count + 1))
            for row in range(g.guidance_rows):
                assert (features[row, i, :count, 2] == (row if past else [0] * (count - 1) + [row])).all()
            if past == 0:
                assert tokens[:-1] == [0] * (P - 1)
                assert features[0, i, :count, 0].tolist() == list(range(P))
                tokens = tokens[-1:]
            else:
                assert past == P + len(self.drafted[r]) - 1
                self._check_features(int(r), features[:, i, :count], positions)
            self.drafted[r] += tokens
            shape = self.engine.trees[tree]
            noise = None if inputs.noise is None else inputs.noise[i].tolist()
            assert (np.shape(noise) == (shape.levels, g.vocabulary)) == shape.coupled
            seen = (self.prompts[r], self.drafted[r], *([noise] if shape.coupled else []))
            rng = np.random.default_rng(digest("tree", tree, *seen))
            grown.append(grow_tree(rng, shape, g.vocabulary, tokens[-1]))
        self.engine_seconds += 1e-6
        return DraftResult(
            *(
                np.stack([getattr(one, field) for one in grown])
                for field in ("tokens", "parents", "depth", "ancestors", "scores")
            )
        )

    def _check_features(self, r: int, features: np.ndarray, positions: list[int]) -> None:
        """The features at hand must be those before the tokens, or else the newest that exist."""
        committed = self.committed[r]
        fresh = features[0, 0, 0] == positions[0] - 1
        count = len(positions)
        last = len(committed)
        ends = list(range(last - count + 1, last + 1))
        if not fresh:  # after a skip: the last ones, the very last repeated if there are fewer
            available = list(range(max(1, last - count + 1), last + 1))
            ends = available + [last] * (count - len(available))
        expected = np.stack([self.feature(r, tuple(committed[:end])) for end in ends], axis=1)
        assert (features == expected).all()
