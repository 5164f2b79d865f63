"""The whole EAGLE-2 draft tree as one traceable module: consume rows, grow, re-rank, attach to the root.

As published, the drafter sees every prompt row, padded ones too.

Shapes: B = g R rows (g guidance rows), A consumed rows, k children and frontier width, M scored nodes,
N tree nodes, V vocabulary, D hidden, S cache capacity.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vvs.export.drafter import Drafter
from vvs.export.layers import Block
from vvs.export.llamagen import Target, guide
from vvs.tree_shape import TreeShape

# Stands for log 0: below every real score, yet finite, so that sums and comparisons stay defined.
IMPOSSIBLE = -1e9


class Tree(NamedTuple):
    """One draft tree a request; node 0 is the root."""

    tokens: Tensor  # [R, N]
    parents: Tensor  # [R, N], -1 at the root
    depth: Tensor  # [R, N]
    ancestors: Tensor  # [R, N, N] bool, self included
    scores: Tensor  # [R, N] cumulative log-probability


class _Scored(NamedTuple):
    """Every scored node in order of creation; ids count from 1, the root is 0."""

    tokens: Tensor  # [R, M]
    scores: Tensor  # [R, M]
    parents: Tensor  # [R, M] ids


class _Frontier(NamedTuple):
    """The k nodes that are expanded next."""

    tokens: Tensor  # [R, k]
    scores: Tensor  # [R, k]
    features: Tensor  # [B, k, D] predicted features of their parents
    ids: Tensor  # [R, k]
    ancestry: Tensor  # [R, k, levels * k] bool, which expanded nodes of earlier levels are ancestors


def log_probabilities(logits: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    """Log-probabilities ``[R, K, V]`` of guided logits after temperature and nucleus; temperature 0 reads as 1."""
    heat = torch.where(temperature > 0, temperature, torch.ones_like(temperature)).reshape(-1, 1, 1)
    logs = torch.log_softmax(logits / heat, dim=-1)
    ordered = logs.sort(dim=-1, descending=True).values
    mass = ordered.exp().cumsum(-1)
    # A token stays while the mass of the likelier ones is below top_p.
    bound = top_p.reshape(-1, 1, 1)
    keep = (mass - ordered.exp()) < bound
    floor = torch.where(keep, ordered, torch.zeros_like(ordered)).amin(-1, keepdim=True)
    inside = logs >= floor
    kept = torch.where(inside, logs.exp(), torch.zeros_like(logs)).sum(-1, keepdim=True)
    nucleus = torch.where(inside, logs - kept.log(), torch.full_like(logs, IMPOSSIBLE))
    return torch.where(bound < 1, nucleus, logs)


class DraftTree(nn.Module):
    """Drafts one tree a request from target features."""

    def __init__(self, drafter: Drafter, target: Target, shape: TreeShape) -> None:
        super().__init__()
        self.drafter = drafter
        self.head = target.lm_head
        self.shape = shape
        self.guidance_rows = drafter.config.geometry.guidance_rows

    def _predict(self, features: Tensor, cfg_scale: Tensor) -> Tensor:
        logits = self.head(features).float()
        return guide(logits, cfg_scale) if self.guidance_rows == 2 else logits

    def _both(self, rows: Tensor) -> Tensor:
        """Repeat per-request rows ``[R, ...]`` for the guidance rows: ``[B, ...]``."""
        return torch.cat([rows] * self.guidance_rows)

    def forward(
        self,
        features: Tensor,
        tokens: Tensor,
        root: Tensor,
        positions: Tensor,
        count: Tensor,
        past_length: Tensor,
        cfg_scale: Tensor,
        temperature: Tensor,
        top_p: Tensor,
        past_k: Tensor,
        past_v: Tensor,
    ) -> tuple[Tensor, ...]:
        """Consume rows and draft.

        Args: ``features [B, A, D]``, ``tokens [B, A]``, ``root [R]``, ``positions [B, A]``, ``count [B]``,
            ``past_length [B]``, ``cfg_scale``, ``temperature`` and ``top_p`` ``[R]``,
            ``past_k`` and ``past_v`` ``[B, H, S, Dh]``.

        Returns: the fields of :class:`Tree`, then the consumed rows' ``new_k`` and ``new_v`` ``[B, H, A, Dh]``.
        """
        rows = torch.arange(tokens.shape[1], device=tokens.device)
        cached = torch.arange(past_k.shape[2], device=tokens.device)
        past = Block(past_k, past_v, (cached < past_length.unsqueeze(1)).unsqueeze(1))
        causal = (rows[None, :] <= rows[:, None]).unsqueeze(0)
        out, new_k, new_v = self.drafter(self.drafter.fuse(tokens, features), positions, [past], causal)
        newest = (count - 1).unsqueeze(1)
        last = torch.gather(out, 1, newest.unsqueeze(-1).expand(-1, 1, out.shape[2]))
        position = torch.gather(positions, 1, newest) + 1
        consumed = Block(new_k, new_v, (rows < count.unsqueeze(1)).unsqueeze(1))
        scored = self._grow(last, position, [past, consumed], cfg_scale, (temperature, top_p))
        return (*self._attach(scored, root), new_k, new_v)

    def _grow(
        self,
        last: Tensor,
        position: Tensor,
        seen: list[Block],
        cfg_scale: Tensor,
        heat: tuple[Tensor, Tensor],
    ) -> _Scored:
        k, requests = self.shape.k, last.shape[0] // self.guidance_rows
        logs = log_probabilities(self._predict(last, cfg_scale), *heat)
        best = logs[:, 0].topk(k)
        no_ancestry = torch.zeros(requests, k, 0, dtype=torch.bool, device=last.device)
        ids = torch.arange(1, k + 1, device=last.device).expand(requests, k)
        frontier = _Frontier(best.indices, best.values, last.expand(-1, k, -1), ids, no_ancestry)
        levels = [_Scored(best.indices, best.values, torch.zeros_like(ids))]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for level in range(self.shape.depth):
            out, key, value = self._expand(frontier, position + level, seen, keys, values)
            keys.append(key)
            values.append(value)
            logs = log_probabilities(self._predict(out, cfg_scale), *heat)
            children = logs.topk(k)
            scores = (frontier.scores.unsqueeze(-1) + children.values).flatten(1)
            tokens = children.indices.flatten(1)
            parents = frontier.ids.unsqueeze(-1).expand(-1, -1, k).flatten(1)
            levels.append(_Scored(tokens, scores, parents))
            frontier = self._next_frontier(frontier, levels[-1], out, first_id=1 + k + level * k * k)
        return _Scored(*(torch.cat(parts, dim=1) for parts in zip(*levels, strict=True)))

    def _expand(
        self, frontier: _Frontier, position: Tensor, seen: list[Block], keys: list[Tensor], values: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the k frontier nodes; each sees the past, the consumed rows, its ancestors and itself."""
        k = self.shape.k
        x = self.drafter.fuse(self._both(frontier.tokens), frontier.features)
        blocks = list(seen)
        if keys:
            ancestry = self._both(frontier.ancestry)
            blocks.append(Block(torch.cat(keys, dim=2), torch.cat(values, dim=2), ancestry))
        itself = torch.eye(k, dtype=torch.bool, device=x.device).unsqueeze(0)
        out: tuple[Tensor, Tensor, Tensor] = self.drafter(x, position.expand(-1, k), blocks, itself)
        return out

    def _next_frontier(self, frontier: _Frontier, level: _Scored, out: Tensor, first_id: int) -> _Frontier:
        """The best k of the k * k children."""
        k = self.shape.k
        best = level.scores.topk(k)
        parent = best.indices // k
        tokens = torch.gather(level.tokens, 1, best.indices)
        source = self._both(parent).unsqueeze(-1).expand(-1, -1, out.shape[-1])
        itself = torch.eye(k, dtype=torch.bool, device=out.device).expand(len(parent), k, k)
        lineage = torch.cat([frontier.ancestry, itself], dim=2)
        ancestry = torch.gather(
            lineage.to(torch.uint8), 1, parent.unsqueeze(-1).expand(-1, -1, lineage.shape[2])
        )
        features = torch.gather(out, 1, source)
        return _Frontier(tokens, best.values, features, best.indices + first_id, ancestry.bool())

    def _attach(self, scored: _Scored, root: Tensor) -> Tree:
        """Keep the best ``total`` nodes in order of creation and hang them on the root."""
        total = self.shape.total
        chosen = scored.scores.topk(total).indices.sort(dim=1).values
        picked = [torch.gather(part, 1, chosen) for part in scored]
        tokens = torch.cat([root.unsqueeze(1), picked[0]], dim=1)
        scores = torch.cat([torch.zeros_like(picked[1][:, :1]), picked[1]], dim=1)
        # A parent's place among the chosen: as many chosen ids lie below its own.
        place = (chosen.unsqueeze(1) + 1 < picked[2].unsqueeze(2)).long().sum(-1) + 1
        place = torch.where(picked[2] == 0, torch.zeros_like(place), place)
        parents = torch.cat([torch.full_like(root.unsqueeze(1), -1), place], dim=1)
        ancestors = self._close(parents)
        depth = ancestors.long().sum(-1) - 1
        return Tree(tokens, parents, depth, ancestors, scores)

    def _close(self, parents: Tensor) -> Tensor:
        """Ancestors ``[R, N, N]`` of parents ``[R, N]``: the transitive closure, by repeated squaring."""
        nodes = torch.arange(self.shape.nodes, device=parents.device)
        link = (parents.unsqueeze(-1) == nodes) | (nodes.unsqueeze(-1) == nodes)
        reach = link.float()
        steps = 1
        while steps < self.shape.depth + 1:
            reach = (torch.matmul(reach, reach) > 0).float()
            steps *= 2
        return reach > 0
