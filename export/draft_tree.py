"""The whole EAGLE-2 draft tree as one traceable module: consume rows, grow, re-rank, attach to the root.

As published, the drafter sees every prompt row, padded ones too.

Shapes: B = g R rows (g guidance rows), A consumed rows, k children and frontier width, M scored nodes,
N tree nodes, V vocabulary, D hidden, S cache capacity.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.export.drafter import Drafter
from vvs.export.layers import Rotation, Rows, Sight, rotation_at, visibility_bias
from vvs.export.llamagen import Target, guided_logits
from vvs.tree_shape import TreeShape

# The log-probability of a token outside the nucleus. A tree with more nodes than the nuclei have tokens is
# filled up with such nodes; they are tied, so which ones is up to the top-k of the runtime, as published.
IMPOSSIBLE = float("-inf")
# The nucleus is found by narrowing its bound this many times, each time to one of this many parts: 2^-26
# of the range of the log-probabilities, about a float's precision.
NARROWINGS = 13
PARTS = 4
NUCLEUS = "vvs::Nucleus"
# How far drafter and target are apart, as the scale of a Gumbel distribution: with that much more noise on
# its log-probabilities, the drafter would be right about its tokens as often as it says. Measured on the
# demo's drafter, whose likeliest scale is 0.6 at the first level and 0.8 at the third.
DOUBT = 0.7


class Tree(NamedTuple):
    """One draft tree a request; node 0 is the root."""

    tokens: Tensor  # [R, N]
    parents: Tensor  # [R, N], -1 at the root
    depth: Tensor  # [R, N]
    ancestors: Tensor  # [R, N, N] bool, self included
    scores: Tensor  # [R, N] cumulative log-probability


class _Scored(NamedTuple):
    """Scored nodes in order of creation: k below the root, then k * k below the frontier of every level."""

    tokens: Tensor  # [R, M]
    scores: Tensor  # [R, M]


class _Frontier(NamedTuple):
    """The k nodes that are expanded next."""

    tokens: Tensor  # [R, k]
    scores: Tensor  # [R, k]
    features: Tensor  # [B, k or 1, D] predicted features of their parents
    ids: Tensor  # [R, k] places among all scored nodes, counted from 1; the root is 0
    lineage: Tensor  # [B, k, levels * k] attention bias: which expanded nodes are ancestors, or itself


class _Heat(NamedTuple):
    """How the tokens that are drafted for are drawn."""

    cfg_scale: Tensor  # [R]
    temperature: Tensor  # [R]
    top_p: Tensor  # [R]
    noise: Tensor | None  # [R, levels, V], of a coupled tree


class _Grown(NamedTuple):
    """Everything that was scored, and which of it was expanded."""

    scored: _Scored
    expanded: Tensor  # [R, 1 + depth * k] ids: the root, then the frontier of every level


def log_probabilities(logits: Tensor, temperature: Tensor, top_p: Tensor) -> Tensor:
    """Log-probabilities ``[R, K, V]`` of guided logits after temperature and nucleus.

    Temperature 0 reads as 1: greedy drafting ranks by the raw logits.
    """
    heat = torch.where(temperature > 0, temperature, 1.0).reshape(-1, 1, 1)
    logs = torch.log_softmax(logits / heat, dim=-1)
    if torch.compiler.is_exporting():
        # One node, which vvs.export.nucleus replaces by the search below under an ``If``.
        return torch.onnx.ops.symbolic(NUCLEUS, (logs, top_p), dtype=logs.dtype, shape=logs.shape, version=1)
    return nucleus(logs, top_p)


def foreseen(logs: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
    """Log-probabilities ``[R, K, V]`` that the target draws a token with this noise ``[R, V]``.

    It draws the argmax of its own log-probabilities plus noise. If those of the drafter, ``logs``, are off by
    Gumbel noise of scale ``DOUBT``, then ``log_softmax((logs + noise) / DOUBT)`` is what can be said of it.
    At temperature 0 there is no noise, and they stay as they are.
    """
    doubt = torch.where(temperature > 0, DOUBT, 1.0).reshape(-1, 1, 1)
    return torch.log_softmax((logs + noise.unsqueeze(1)) / doubt, dim=-1)


def nucleus(logs: Tensor, top_p: Tensor) -> Tensor:
    """Log-probabilities ``[R, K, V]`` renormalised over the nucleus; the rest is ``IMPOSSIBLE``.

    A token stays while the mass of the likelier ones is below ``top_p [R]``; at 1 or more all stay. Found
    without sorting the vocabulary, which TensorRT cannot: ``low`` rises to just below the least likely token
    that stays.
    """
    if not (top_p < 1).any():
        return logs
    bound = top_p.reshape(-1, 1, 1)
    probabilities = logs.exp()
    low = logs.amin(-1, keepdim=True) - 1
    width = logs.amax(-1, keepdim=True) - low
    steps = torch.arange(1, PARTS, device=logs.device, dtype=logs.dtype) / PARTS
    for _ in range(NARROWINGS):
        likelier = logs.unsqueeze(2) > (low + width * steps).unsqueeze(-1)
        mass = torch.where(likelier, probabilities.unsqueeze(2), 0.0).sum(-1)
        low = low + width * ((mass >= bound).to(logs.dtype).sum(-1, keepdim=True) / PARTS)
        width = width / PARTS
    inside = (logs > low) | (bound >= 1)
    kept = torch.where(inside, probabilities, 0.0).sum(-1, keepdim=True)
    shift = torch.where(bound < 1, kept.log(), 0.0)
    return torch.where(inside, logs - shift, IMPOSSIBLE)


class DraftTree(nn.Module):
    """Drafts one tree a request from target features."""

    parent_in_frontier: Tensor
    parent_expanded: Tensor

    def __init__(self, drafter: Drafter, target: Target, shape: TreeShape) -> None:
        super().__init__()
        self.drafter = drafter
        self.head = target.lm_head
        self.shape = shape
        self.guidance_rows = drafter.config.geometry.guidance_rows
        k, depth = shape.k, shape.depth
        # Of the k * k children of a level: the place of their parent in its frontier. Of all scored nodes:
        # the place of their parent among the expanded ones.
        of_level = torch.arange(k).repeat_interleave(k)
        levels = [torch.zeros(k, dtype=torch.int64), *(1 + k * level + of_level for level in range(depth))]
        self.register_buffer("parent_in_frontier", of_level, persistent=False)
        self.register_buffer("parent_expanded", torch.cat(levels), persistent=False)

    def _predict(self, features: Tensor, heat: _Heat, level: int) -> Tensor:
        """Log-probabilities ``[R, K, V]`` of the tokens that follow ``features [B, K, D]`` on a level."""
        logits = guided_logits(self.head, features, heat.cfg_scale, self.guidance_rows)
        logs = log_probabilities(logits, heat.temperature, heat.top_p)
        return logs if heat.noise is None else foreseen(logs, heat.noise[:, level], heat.temperature)

    def _both(self, rows: Tensor) -> Tensor:
        """Repeat per-request rows ``[R, ...]`` for the guidance rows: ``[B, ...]``."""
        return torch.cat([rows] * self.guidance_rows) if self.guidance_rows > 1 else rows

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
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        """Consume rows and draft.

        Args: ``features [B, A, D]``, ``tokens [B, A]``, ``root [R]``, ``positions [B, A]``, ``count [B]``,
            ``past_length [B]``, ``cfg_scale``, ``temperature`` and ``top_p`` ``[R]``, of a coupled tree
            ``noise [R, levels, V]``, and of every layer of the drafter keys and values in turn,
            ``[B, H, S, Dh]``.

        Returns: the fields of :class:`Tree`, then the consumed rows' keys and values ``[B, H, A, Dh]`` in the
            same order.
        """
        noise, past = (rest[0], rest[1:]) if self.shape.coupled else (None, rest)
        caches = [Rows(*pair) for pair in zip(past[::2], past[1::2], strict=True)]
        rows = torch.arange(tokens.shape[1], device=tokens.device)
        cached = torch.arange(past[0].shape[2], device=tokens.device) < past_length.unsqueeze(1)
        # The newest row sees all the others; of those the last layer is asked for keys and values only.
        newest = (count - 1).unsqueeze(1)
        bias = visibility_bias(torch.cat([cached, rows < count.unsqueeze(1)], dim=1).unsqueeze(1))
        *below, last_cache = caches
        sights = [*self._whole_sights(below, cached, rows), Sight([last_cache], bias, newest)]
        fused = self.drafter.fuse(tokens, features)
        last, new = self.drafter(fused, rotation_at(self.drafter.rotation, positions), sights)
        position = torch.gather(positions, 1, newest) + 1
        bias = bias.expand(-1, -1, self.shape.k, -1)
        seen = [Sight(stretches, bias) for stretches in zip(caches, new, strict=True)]
        grown = self._grow(last, position, seen, _Heat(cfg_scale, temperature, top_p, noise))
        return (*self._attach(grown, root), *(part for pair in new for part in pair))

    def _whole_sights(self, caches: list[Rows], cached: Tensor, rows: Tensor) -> list[Sight]:
        """What all consumed rows see in layers with these caches: the cached rows and those up to itself."""
        if not caches:
            return []
        earlier = (rows[None, :] <= rows[:, None]).expand(cached.shape[0], -1, -1)
        visible = torch.cat([cached.unsqueeze(1).expand(-1, rows.shape[0], -1), earlier], dim=2)
        bias = visibility_bias(visible)
        return [Sight([cache], bias) for cache in caches]

    def _grow(
        self,
        last: Tensor,
        position: Tensor,
        seen: list[Sight],
        heat: _Heat,
    ) -> _Grown:
        k = self.shape.k
        best = self._predict(last, heat, 0)[:, 0].topk(k)
        ids = torch.arange(1, k + 1, device=last.device).expand(best.indices.shape[0], k)
        itself = visibility_bias(torch.eye(k, dtype=torch.bool, device=last.device))[:, 0]
        itself = itself.expand(last.shape[0], k, k)
        frontier = _Frontier(best.indices, best.values, last, ids, itself)
        levels = [_Scored(best.indices, best.values)]
        expanded = [torch.zeros_like(ids[:, :1])]
        for level, rotation in enumerate(self._rotations(position)):
            out, new = self._expand(frontier, rotation, seen)
            seen = [Sight([*sight.past, rows], sight.bias) for sight, rows in zip(seen, new, strict=True)]
            children = self._predict(out, heat, level + 1).topk(k)
            scores = (frontier.scores.unsqueeze(-1) + children.values).flatten(1)
            levels.append(_Scored(children.indices.flatten(1), scores))
            expanded.append(frontier.ids)
            if level + 1 < self.shape.depth:
                frontier = self._next_frontier(levels[-1], out, frontier, itself, level)
        scored = _Scored(*(torch.cat(parts, dim=1) for parts in zip(*levels, strict=True)))
        return _Grown(scored, torch.cat(expanded, dim=1))

    def _rotations(self, position: Tensor) -> list[Rotation]:
        """The rotation of every level; the first one is at ``position [B, 1]``."""
        if not self.shape.depth:
            return []
        levels = position + torch.arange(self.shape.depth, device=position.device)
        cos, sin = rotation_at(self.drafter.rotation, levels)
        turns = (torch.split(part, 1, dim=2) for part in (cos, sin))
        return [Rotation(*turn) for turn in zip(*turns, strict=True)]

    def _expand(
        self, frontier: _Frontier, rotation: Rotation, seen: list[Sight]
    ) -> tuple[Tensor, list[Rows]]:
        """Run the k frontier nodes; each sees the past, the consumed rows, its ancestors and itself.

        ``seen`` is what all of them see in every layer, their lineage left out.
        """
        x = self.drafter.fuse(self._both(frontier.tokens), frontier.features)
        bias = torch.cat([seen[0].bias, frontier.lineage.unsqueeze(1)], dim=-1)
        out: tuple[Tensor, list[Rows]] = self.drafter(
            x, rotation, [Sight(sight.past, bias) for sight in seen]
        )
        return out

    def _next_frontier(
        self, level: _Scored, out: Tensor, frontier: _Frontier, itself: Tensor, index: int
    ) -> _Frontier:
        """The best k of the k * k children of one level."""
        k = self.shape.k
        best = level.scores.topk(k)
        source = self._both(self.parent_in_frontier[best.indices]).unsqueeze(-1)
        width, depth = out.shape[-1], frontier.lineage.shape[2]
        inherited = torch.gather(frontier.lineage, 1, source.expand(-1, -1, depth))
        return _Frontier(
            torch.gather(level.tokens, 1, best.indices),
            best.values,
            torch.gather(out, 1, source.expand(-1, -1, width)),
            best.indices + (1 + k + index * k * k),
            torch.cat([inherited, itself], dim=2),
        )

    def _attach(self, grown: _Grown, root: Tensor) -> Tree:
        """Keep the best ``total`` nodes in order of creation and hang them on the root."""
        total = self.shape.total
        if self.shape.branches_alike:
            return self._attach_in_order(grown.scored, root)
        best = grown.scored.scores.topk(total).indices
        # Ascending order; a sort, but of a length that the graph knows.
        chosen = best.topk(total, largest=False).values
        tokens, scores = (torch.gather(part, 1, chosen) for part in grown.scored)
        above = torch.gather(grown.expanded, 1, self.parent_expanded[chosen])
        # A parent's place in the tree: the root, and as many chosen ones as lie no further than it.
        place = (chosen.unsqueeze(1) + 1 <= above.unsqueeze(2)).long().sum(-1)
        parents = F.pad(place, (1, 0), value=-1)
        ancestors = self._close(parents)
        depth = ancestors.long().sum(-1) - 1
        tokens = torch.cat([root.unsqueeze(1), tokens], dim=1)
        return Tree(tokens, parents, depth, ancestors, F.pad(scores, (1, 0)))

    def _attach_in_order(self, scored: _Scored, root: Tensor) -> Tree:
        """The same where the first nodes are the best: only their tokens and scores are to be found."""
        total, nodes = self.shape.total, self.shape.nodes
        parents = F.pad(self.parent_expanded[:total], (1, 0), value=-1).unsqueeze(0)
        ancestors = self._close(parents)
        depth = ancestors.long().sum(-1) - 1
        requests = root.shape[0]
        return Tree(
            torch.cat([root.unsqueeze(1), scored.tokens[:, :total]], dim=1),
            parents.expand(requests, nodes),
            depth.expand(requests, nodes),
            ancestors.expand(requests, nodes, nodes),
            F.pad(scored.scores[:, :total], (1, 0)),
        )

    def _close(self, parents: Tensor) -> Tensor:
        """Ancestors ``[R, N, N]`` of parents ``[R, N]``: the transitive closure, by repeated squaring."""
        nodes = torch.arange(self.shape.nodes, device=parents.device)
        reach = (parents.unsqueeze(-1) == nodes) | (nodes.unsqueeze(-1) == nodes)
        steps = 1
        while steps < self.shape.depth + 1:
            linked = reach.float()
            reach = torch.matmul(linked, linked) > 0
            steps *= 2
        return reach
