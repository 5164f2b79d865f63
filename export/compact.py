"""The same transformers with fewer, larger operations: what is traced into graphs.

Query, key and value become one product, gate and up another; the drafter's token half of ``fc`` is folded
into its embedding table. The interleaved pairs of a head are reordered so that RoPE turns halves, which
costs two fewer copies a layer; queries and keys are reordered alike, so scores do not change, but *cached
keys* have the order :func:`half_split_order`. The parity check compares all of this with the plain modules.

Fused weights are deferred (:mod:`vvs.export.deferred`): they are made when a graph is written, one at a time.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.export.deferred import Deferred, DeferredLinear
from vvs.export.drafter import Drafter
from vvs.export.layers import Attention, Rotation, SwiGLU, dtype_of
from vvs.export.llamagen import Target
from vvs.export.precision import shallow


def half_split_order(head_dim: int) -> Tensor:
    """Where each place of a reordered head comes from: all even places, then all odd ones, ``[Dh]``."""
    return torch.arange(head_dim).view(-1, 2).t().reshape(-1)


class CompactAttention(Attention):
    """Attention with one product for query, key and value, and rotations by halves."""

    def __init__(self, attention: Attention) -> None:
        nn.Module.__init__(self)
        self.heads = attention.heads
        inner, hidden = attention.q_proj.weight.shape
        order = half_split_order(inner // self.heads)

        def fused() -> Tensor:
            turned = [
                proj.weight.detach().reshape(self.heads, -1, hidden)[:, order].flatten(0, 1)
                for proj in (attention.q_proj, attention.k_proj)
            ]
            return torch.cat([*turned, attention.v_proj.weight.detach()])

        self.qkv_proj = DeferredLinear(fused, (3 * inner, hidden), attention.q_proj.weight.dtype)
        self.o_proj = attention.o_proj

    def project(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value ``[B, H, T, Dh]``, their places in half-split order."""
        rows = self.qkv_proj(x.to(dtype_of(self))).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2)
        turning, value = rows.split([2 * self.heads, self.heads], dim=1)
        wide = turning.float()
        first, second = wide.chunk(2, dim=-1)
        turned = wide * rotation.cos + torch.cat([second, first], dim=-1) * rotation.sin
        query, key = turned.to(value.dtype).chunk(2, dim=1)
        return query, key, value


class CompactSwiGLU(nn.Module):
    """SwiGLU with one product for gate and up."""

    def __init__(self, mlp: SwiGLU) -> None:
        super().__init__()
        parts = (mlp.gate_proj.weight, mlp.up_proj.weight)
        inner, hidden = mlp.gate_proj.weight.shape
        self.gate_up_proj = DeferredLinear(
            lambda: torch.cat([part.detach() for part in parts]), (2 * inner, hidden), parts[0].dtype
        )
        self.down_proj = mlp.down_proj

    def forward(self, x: Tensor) -> Tensor:
        """The same function of ``x [B, T, D]``."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class CompactDrafter(Drafter):
    """A drafter whose ``fc`` is split: a table for the token's share, a product for the feature's."""

    def __init__(self, drafter: Drafter) -> None:
        nn.Module.__init__(self)
        self.config = drafter.config
        V, D = drafter.embed_tokens.weight.shape
        dtype = drafter.fc.weight.dtype

        def share() -> Tensor:
            of_token = drafter.fc.weight.detach()[:, :D]
            bias = None if drafter.fc.bias is None else drafter.fc.bias.detach().float()
            embeddings = drafter.embed_tokens.weight.detach().float()
            return F.linear(embeddings, of_token.float(), bias).to(dtype)

        self.token_share = Deferred(share, (V, D), dtype)
        self.fc = DeferredLinear(  # type: ignore[assignment]
            lambda: drafter.fc.weight.detach()[:, D:], (D, D), dtype
        )
        self.layers = nn.ModuleList(_compact_layer(layer) for layer in drafter.layers)
        self.register_buffer("rotation", _half_split_rotation(drafter.rotation), persistent=False)

    def fuse(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Input rows ``[B, A, D]`` of next tokens ``[B, A]`` and features ``[B, A or 1, D]``."""
        out: Tensor = self.fc(features.to(dtype_of(self.fc))) + F.embedding(tokens, self.token_share())
        return out


def _half_split_rotation(table: Tensor) -> Tensor:
    """Cosines and signed sines at full width ``[2, L, Dh]``."""
    cos, sin = table
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)])


def _compact_layer(layer: nn.Module) -> nn.Module:
    copy = shallow(layer)
    copy.self_attn = CompactAttention(layer.self_attn)  # type: ignore[arg-type]
    copy.mlp = CompactSwiGLU(layer.mlp)  # type: ignore[arg-type]
    return copy


@torch.no_grad()
def compact_target(target: Target) -> Target:
    """A target with the same forward pass over compact layers; the original stays as it is."""
    copy = shallow(target)
    trunk = shallow(target.model)
    trunk.layers = nn.ModuleList(_compact_layer(layer) for layer in target.model.layers)
    copy.model = trunk
    copy.rotation = _half_split_rotation(target.rotation)
    assert isinstance(copy, Target)  # noqa: S101 - for the type checker
    return copy


@torch.no_grad()
def compact_drafter(drafter: Drafter) -> CompactDrafter:
    """A drafter with the same forward pass over compact layers."""
    return CompactDrafter(drafter)
