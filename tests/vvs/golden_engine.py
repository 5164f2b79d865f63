"""A slow numpy engine over the recorded tiny weights, so that the loop alone can replay whole traces.

An oracle for these tests only: one family, one size, float32 as recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vvs.engine import Conditioning, DraftResult, DraftRows, TargetResult, TargetRows
from vvs.geometry import Geometry
from vvs.tree_shape import TreeShape

BLOCKED = np.float32(-1e9)
ROPE_BASE = 10000.0


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + 0.044715 * x**3)))


class GoldenEngine:
    def __init__(self, target: Mapping[str, np.ndarray], drafter: Mapping[str, np.ndarray]) -> None:
        self.target = {key: target[key].astype(np.float32) for key in target}
        self.drafter = {key: drafter[key].astype(np.float32) for key in drafter}
        self.geometry = Geometry(16, 512, 8, 120, 2, 4, 16, 64, 2, 256)
        self.trees = {"published": TreeShape(k=10, depth=4, total=58)}

    def open(self, requests: int) -> GoldenSession:
        return GoldenSession(self, requests)

    def decode_image(self, tokens: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def rotate(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """2-D RoPE of ``x [H, T, Dh]``; prompt positions and those past the image become zero vectors."""
        g = self.geometry
        image = positions - g.prompt_length
        frequency = ROPE_BASE ** (-2 * np.arange(g.head_dim // 4) / (g.head_dim / 2))
        angles = np.concatenate(
            [(image // g.grid)[:, None] * frequency, (image % g.grid)[:, None] * frequency], -1
        )
        inside = ((image >= 0) & (image < g.image_tokens))[:, None]
        cos, sin = ((f(angles) * inside).astype(np.float32) for f in (np.cos, np.sin))
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(x.shape)

    def layer(
        self,
        weights: Mapping[str, np.ndarray],
        prefix: str,
        x: np.ndarray,
        positions: np.ndarray,
        past: np.ndarray,
        allowed: np.ndarray,
        *,
        eps: float,
        input_norm: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """One decoder layer on ``x [T, D]``, ``past [2, H, L, Dh]``, ``allowed [T, L + T]``; also new KV."""
        g = self.geometry
        h = rms(x, weights[prefix + "input_layernorm.weight"], eps) if input_norm else x

        def heads(name: str) -> np.ndarray:
            rows = h @ weights[f"{prefix}self_attn.{name}_proj.weight"].T
            return rows.reshape(len(x), g.heads, g.head_dim).transpose(1, 0, 2)

        q, k, v = self.rotate(heads("q"), positions), self.rotate(heads("k"), positions), heads("v")
        keys, values = np.concatenate([past[0], k], 1), np.concatenate([past[1], v], 1)
        scores = q @ keys.transpose(0, 2, 1) / np.float32(np.sqrt(g.head_dim)) + np.where(
            allowed, np.float32(0), BLOCKED
        )
        out = (softmax(scores) @ values).transpose(1, 0, 2).reshape(len(x), -1)
        x = x + out @ weights[prefix + "self_attn.o_proj.weight"].T
        h = rms(x, weights[prefix + "post_attention_layernorm.weight"], eps)
        gate, up = (h @ weights[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return x + (silu(gate) * up) @ weights[prefix + "mlp.down_proj.weight"].T, np.stack([k, v])

    def target_rows(
        self, x: np.ndarray, positions: np.ndarray, past: np.ndarray, allowed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features ``[T, D]`` and new KV ``[layers, 2, H, T, Dh]``."""
        kv = []
        for i in range(self.geometry.layers):
            x, new = self.layer(
                self.target,
                f"model.layers.{i}.",
                x,
                positions,
                past[i],
                allowed,
                eps=1e-5,
                input_norm=True,
            )
            kv.append(new)
        return rms(x, self.target["model.norm.weight"], 1e-5), np.stack(kv)

    def guided(self, features: np.ndarray, scale: float) -> np.ndarray:
        """Guided logits of ``features [2, T, D]``."""
        conditional, unconditional = features @ self.target["lm_head.weight"].T
        return unconditional + scale * (conditional - unconditional)


class GoldenSession:
    def __init__(self, engine: GoldenEngine, requests: int) -> None:
        g = engine.geometry
        self.engine, self.requests = engine, requests
        self.engine_seconds = 0.0
        self.kv = np.zeros((2, requests, g.layers, 2, g.heads, g.capacity, g.head_dim), np.float32)
        self.draft_kv = np.zeros((2, requests, 2, g.heads, g.capacity, g.head_dim), np.float32)
        self.prompt_mask = np.zeros((requests, g.prompt_length), bool)
        self.last: tuple[np.ndarray, np.ndarray] | None = None
        self.draft_features: list[np.ndarray] = []

    def close(self) -> None:
        self.last = None

    def prefill(self, conditioning: Conditioning, cfg_scale: np.ndarray) -> TargetResult:
        e, g = self.engine, self.engine.geometry
        P = g.prompt_length
        features = np.zeros((2, self.requests, P, g.hidden), np.float32)
        logits = np.zeros((self.requests, P, g.vocabulary), np.float32)
        for r in range(self.requests):
            caption, mask = conditioning["caption"][r], conditioning["caption_mask"][r].astype(bool)
            shift = P - int(mask.sum())
            caption = np.roll(caption * mask[:, None], shift, axis=0).astype(np.float32)
            valid = np.arange(P) >= shift
            self.prompt_mask[r] = valid
            causal = np.tri(P, dtype=bool) & (valid[None, :] | ~valid[:, None])
            for row, states in enumerate((caption, e.target["model.cls_embedding.uncond_embedding"])):
                hidden = gelu_tanh(states @ e.target["model.cls_embedding.cap_proj.fc1.weight"].T)
                x = hidden @ e.target["model.cls_embedding.cap_proj.fc2.weight"].T
                empty = np.zeros((g.layers, 2, g.heads, 0, g.head_dim), np.float32)
                features[row, r], kv = e.target_rows(x, np.arange(P), empty, causal)
                self.kv[row, r, :, :, :, :P] = kv
            logits[r] = e.guided(features[:, r], float(cfg_scale[r]))
        return TargetResult(logits.astype(np.float32), features.reshape(-1, P, g.hidden))

    def verify(self, rows: np.ndarray, inputs: TargetRows) -> TargetResult:
        e, g = self.engine, self.engine.geometry
        n, T = inputs.tokens.shape
        features = np.zeros((2, n, T, g.hidden), np.float32)
        logits = np.zeros((n, T, g.vocabulary), np.float32)
        new = np.zeros((2, n, g.layers, 2, g.heads, T, g.head_dim), np.float32)
        for i, r in enumerate(rows):
            L = int(inputs.past_length[i])
            visible = np.concatenate([self.prompt_mask[r], np.ones(L - g.prompt_length, bool)])
            allowed = np.concatenate([np.tile(visible, (T, 1)), inputs.ancestors[i]], 1)
            x = e.target["model.embed_tokens.weight"][inputs.tokens[i]]
            for row in range(2):
                past = self.kv[row, r, :, :, :, :L]
                features[row, i], new[row, i] = e.target_rows(x, inputs.positions[i], past, allowed)
            logits[i] = e.guided(features[:, i], float(inputs.cfg_scale[i]))
        self.last = (rows, new)
        return TargetResult(logits.astype(np.float32), features.reshape(-1, T, g.hidden))

    def commit(self, rows: np.ndarray, kept: Sequence[np.ndarray], past_length: np.ndarray) -> None:
        assert self.last is not None
        assert (self.last[0] == rows).all()
        for i, (r, keep) in enumerate(zip(rows, kept, strict=True)):
            start = int(past_length[i])
            self.kv[:, r, :, :, :, start : start + keep.size] = self.last[1][:, i][..., keep, :]

    def drafter_rows(
        self,
        features: np.ndarray,
        tokens: np.ndarray,
        positions: np.ndarray,
        past: np.ndarray,
        allowed: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        weights = self.engine.drafter
        embedded = weights["embed_tokens.weight"][tokens]
        x = np.concatenate([embedded, features], -1) @ weights["fc.weight"].T + weights["fc.bias"]
        return self.engine.layer(
            weights, "layers.0.", x, positions, past, allowed, eps=1e-6, input_norm=False
        )

    def draft(self, rows: np.ndarray, inputs: DraftRows, tree: str) -> DraftResult:
        shape = self.engine.trees[tree]
        A = inputs.tokens.shape[1]
        by_row = inputs.features.reshape(2, len(rows), A, -1)
        grown = [self._draft_one(int(r), i, inputs, by_row[:, i], shape) for i, r in enumerate(rows)]
        return DraftResult(*(np.stack(arrays) for arrays in zip(*grown, strict=True)))

    def _draft_one(
        self, r: int, i: int, inputs: DraftRows, features: np.ndarray, shape: TreeShape
    ) -> tuple[Any, ...]:
        e, g = self.engine, self.engine.geometry
        count, L = int(inputs.count[i]), int(inputs.past_length[i])
        features = features[:, :count].astype(np.float32)
        self.draft_features.append(features)
        tokens, positions = inputs.tokens[i, :count], inputs.positions[i, :count]

        # The published drafter has no prompt mask: its rows attend causally to every row, padded ones too.
        allowed = np.concatenate([np.ones((count, L), bool), np.tri(count, dtype=bool)], 1)
        out = np.zeros((2, count, g.hidden), np.float32)
        for row in range(2):
            past = self.draft_kv[row, r, :, :, :L]
            out[row], kv = self.drafter_rows(features[row], tokens, positions, past, allowed)
            self.draft_kv[row, r, :, :, L : L + count] = kv

        def log_probabilities(hidden: np.ndarray) -> np.ndarray:
            logits = e.guided(hidden, float(inputs.cfg_scale[i]))
            temperature, top_p = float(inputs.temperature[i]), float(inputs.top_p[i])
            logits = logits / temperature if temperature > 0 else logits
            if temperature > 0 and top_p < 1:
                for row in logits:
                    order = np.argsort(row)
                    drop = np.cumsum(softmax(row[order])) <= 1 - top_p
                    drop[-1] = False
                    row[order[drop]] = -np.inf
            with np.errstate(divide="ignore"):
                return np.log(softmax(logits))

        # The frontier: k nodes per depth, kept with their index among all scored nodes.
        k, past_length = shape.k, L + count
        base = self.draft_kv[:, r, :, :, :past_length]
        visible = np.ones(past_length, bool)
        scores = log_probabilities(out[:, -1:])[0]
        best = np.argsort(-scores, kind="stable")[:k]
        node_tokens, node_scores, node_parents = list(best), list(scores[best]), [-1] * k
        frontier = np.arange(k)
        hidden = np.repeat(out[:, -1:], k, axis=1)
        tree_kv = np.zeros((2, 2, g.heads, 0, g.head_dim), np.float32)
        ancestors = np.zeros((k, 0), bool)
        root_position = int(positions[-1])
        for depth in range(shape.depth):
            here = np.array([node_tokens[f] for f in frontier])
            allowed = np.concatenate([np.tile(visible, (k, 1)), ancestors, np.eye(k, dtype=bool)], 1)
            next_hidden = np.zeros_like(hidden)
            new = []
            for row in range(2):
                past = np.concatenate([base[row], tree_kv[row]], 2)
                next_hidden[row], kv = self.drafter_rows(
                    hidden[row], here, np.full(k, root_position + 1 + depth), past, allowed
                )
                new.append(kv)
            tree_kv = np.concatenate([tree_kv, np.stack(new)], 3)
            step = log_probabilities(next_hidden)
            top = np.argsort(-step, axis=1, kind="stable")[:, :k]
            parent_scores = np.array([node_scores[f] for f in frontier])
            total = parent_scores[:, None] + np.take_along_axis(step, top, 1)
            start = len(node_tokens)
            node_tokens += list(top.ravel())
            node_scores += list(total.ravel())
            node_parents += list(np.repeat(frontier, k))
            chosen = np.argsort(-total.ravel(), kind="stable")[:k]
            frontier = start + chosen
            hidden = next_hidden[:, chosen // k]
            ancestors = np.concatenate([ancestors, np.eye(k, dtype=bool)], 1)[chosen // k]
        keep = np.sort(np.argsort(-np.array(node_scores), kind="stable")[: shape.total])
        place = {int(node): j + 1 for j, node in enumerate(keep)} | {-1: 0}
        parents = np.array([-1] + [place[int(node_parents[node])] for node in keep])
        depth_of, seen = np.zeros(shape.nodes, np.int64), np.eye(shape.nodes, dtype=bool)
        for node in range(1, shape.nodes):
            depth_of[node] = depth_of[parents[node]] + 1
            seen[node] |= seen[parents[node]]
        return (
            np.array([int(tokens[-1])] + [int(node_tokens[node]) for node in keep]),
            parents,
            depth_of,
            seen,
            np.array([0.0] + [node_scores[node] for node in keep], np.float32),
        )
