"""Transformer layers that target and drafter share: RMSNorm, 2-D RoPE, attention over a cache, SwiGLU.

Norms, rotations and softmax are computed in float32 whatever the weights' dtype, so that half-precision
graphs keep their accuracy. Nothing here writes a cache: attention reads past rows and returns new ones.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

# Large enough to vanish in a softmax, small enough that a fully masked row stays finite.
MASKED = -1e9


def dtype_of(module: nn.Module) -> torch.dtype:
    """The floating-point dtype that a module computes in: that of its first weight."""
    return next(p.dtype for p in module.parameters() if p.is_floating_point())


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last axis, in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of ``x``; the result has the weights' dtype."""
        wide = x.float()
        # Written as a division by a root: the form that graph optimisers know as one fused norm.
        unit = wide / torch.sqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return unit.to(self.weight.dtype) * self.weight


class Rotation(NamedTuple):
    """Cosines and sines of the rows at hand, float32 ``[B, 1, T, W]``; W is the table's width."""

    cos: Tensor
    sin: Tensor


def rotation_table(grid: int, prompt_length: int, head_dim: int, base: float) -> Tensor:
    """Cosines and sines ``[2, P + grid * grid + 1, Dh / 2]`` of every position.

    The first half of a head's pairs turns with the row, the second with the column, by
    ``base ** (-2 i / (Dh / 2))``. Prompt positions, and the one entry that stands for all positions past
    the image, are zero: their queries and keys vanish, as in the published model.
    """
    half = head_dim // 2
    frequencies = base ** (-torch.arange(0, half, 2, dtype=torch.float64, device="cpu")[: half // 2] / half)
    steps = torch.arange(grid, dtype=torch.float64, device="cpu")
    turns = torch.outer(steps, frequencies)
    rows = turns[:, None, :].expand(grid, grid, -1)
    columns = turns[None, :, :].expand(grid, grid, -1)
    angles = torch.cat([rows, columns], dim=-1).reshape(grid * grid, half)
    table = torch.zeros(2, prompt_length + grid * grid + 1, half, device="cpu")
    table[0, prompt_length:-1] = angles.cos().float()
    table[1, prompt_length:-1] = angles.sin().float()
    return table


def rotation_at(table: Tensor, positions: Tensor) -> Rotation:
    """The rotation of ``positions [B, T]``; positions past the image share the table's last entry."""
    clamped = positions.clamp(0, table.shape[1] - 1).unsqueeze(1)
    return Rotation(F.embedding(clamped, table[0]), F.embedding(clamped, table[1]))


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn the interleaved pairs (2i, 2i + 1) of ``x [B, H, T, Dh]``."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    cos, sin = rotation
    turned = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1)
    return turned.flatten(-2).to(x.dtype)


class Rows(NamedTuple):
    """Key and value rows ``[B, H, S, Dh]`` of one stretch of a sequence."""

    keys: Tensor
    values: Tensor


class Sight(NamedTuple):
    """What new rows attend to, besides one another."""

    past: Sequence[Rows]
    """The cache, then any short stretches."""
    bias: Tensor
    """``[B, 1, T, S]`` over all rows in order, the new ones last; see :func:`visibility_bias`."""
    only: Tensor | None = None
    """``[B, 1]`` the one new row a sequence that attends, so that T is 1; None: all do."""


def visibility_bias(visible: Tensor) -> Tensor:
    """What is added to attention scores: 0 where ``visible [B, T, S]``, else a large negative number."""
    return torch.where(visible, 0.0, MASKED).unsqueeze(1)


def attend(query: Tensor, past: Rows, recent: Rows, bias: Tensor) -> Tensor:
    """Attention of ``query [B, H, T, Dh]`` over two stretches of rows: one softmax, no concatenated cache.

    ``bias`` is ``[B, 1, T, S]`` over the rows of both, the past first. Rows may be of another dtype than the
    query.
    """
    # Scaling the short query, not the long scores, is less work and fuses into the products.
    query = query * query.shape[-1] ** -0.5
    past, recent = (Rows(*(part.to(query.dtype) for part in rows)) for rows in (past, recent))
    scores = [torch.matmul(query, rows.keys.transpose(-1, -2)) for rows in (past, recent)]
    weights = torch.softmax(torch.cat(scores, dim=-1).float() + bias, dim=-1).to(query.dtype)
    parts = torch.split(weights, [past.keys.shape[2], recent.keys.shape[2]], dim=-1)
    return torch.matmul(parts[0], past.values) + torch.matmul(parts[1], recent.values)


def picked(rows: Tensor, place: Tensor) -> Tensor:
    """The one row of ``rows [B, ..., T, W]`` at ``place [B, 1]``: ``[B, ..., 1, W]``."""
    index = place.reshape(-1, *[1] * (rows.dim() - 1))
    return torch.gather(rows, -2, index.expand(-1, *rows.shape[1:-2], 1, rows.shape[-1]))


class Attention(nn.Module):
    """Multi-head attention whose new key and value rows are handed back to the caller."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def project(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value ``[B, H, T, Dh]`` of ``x [B, T, D]``."""
        x = x.to(dtype_of(self))
        query, key, value = (
            proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        return rotate(query, rotation), rotate(key, rotation), value

    def merge(self, heads: Tensor) -> Tensor:
        """Heads ``[B, H, T, Dh]`` to ``[B, T, D]``."""
        out: Tensor = self.o_proj(heads.transpose(1, 2).flatten(-2))
        return out

    def forward(self, x: Tensor, rotation: Rotation, sight: Sight) -> tuple[Tensor, Rows]:
        """Attend to the past and to the new rows themselves; hand back the new rows in the cache's dtype."""
        cache, *short = sight.past
        query, key, value = self.project(x, rotation)
        if sight.only is not None:
            query = picked(query, sight.only)
        new = Rows(*(part.to(cache.keys.dtype) for part in (key, value)))
        recent = Rows(*(torch.cat(part, dim=2) for part in zip(*short, new, strict=True))) if short else new
        return self.merge(attend(query, cache, recent, sight.bias)), new

    def whole_sequence(self, x: Tensor, rotation: Rotation, visible: Tensor) -> Tensor:
        """The same without a past, by PyTorch's fused kernel; ``visible`` is ``[B or 1, 1, T, T]``."""
        query, key, value = self.project(x, rotation)
        return self.merge(F.scaled_dot_product_attention(query, key, value, attn_mask=visible))


class SwiGLU(nn.Module):
    """``down(silu(gate x) * up x)``."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The layer applied to ``x [B, T, D]``."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def prompt_visibility(valid: Tensor) -> Tensor:
    """Which prompt rows see which, ``[B, P, P]`` for ``valid [B, P]``.

    ``j <= i and (valid[j] or not valid[i])``: padded rows see padded rows only.
    """
    rows = torch.arange(valid.shape[1], device=valid.device)
    causal = rows[None, :] <= rows[:, None]
    return causal & (valid[:, None, :] | ~valid[:, :, None])
