"""The same transformers with fewer, larger operations: what is traced into graphs.

Query, key and value become one product, gate and up another; the drafter's token half of ``fc`` is folded
into its embedding table. The interleaved pairs of a head are reordered so that RoPE turns halves, which
costs two fewer copies a layer; queries and keys are reordered alike, so scores do not change, but *cached
keys* have the order :func:`half_split_order`. The parity check compares all of this with the plain modules.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.export.drafter import Drafter
from vvs.export.layers import Attention, Rotation, SwiGLU
from vvs.export.llamagen import Target


def half_split_order(head_dim: int) -> Tensor:
    """Where each place of a reordered head comes from: all even places, then all odd ones, ``[Dh]``."""
    return torch.arange(head_dim).view(-1, 2).t().reshape(-1)


def _frozen(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach(), requires_grad=False)


def _linear(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = _frozen(weight)
    return linear


class CompactAttention(Attention):
    """Attention with one product for query, key and value, and rotations by halves."""

    def __init__(self, attention: Attention) -> None:
        nn.Module.__init__(self)
        self.heads = attention.heads
        hidden = attention.q_proj.weight.shape[1]
        order = half_split_order(attention.q_proj.weight.shape[0] // self.heads)
        turned = [
            proj.weight.reshape(self.heads, -1, hidden)[:, order].flatten(0, 1)
            for proj in (attention.q_proj, attention.k_proj)
        ]
        self.qkv_proj = _linear(torch.cat([*turned, attention.v_proj.weight]).reshape(-1, hidden))
        self.o_proj = attention.o_proj

    def project(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value ``[B, H, T, Dh]``, their places in half-split order."""
        rows = self.qkv_proj(x).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2)
        turning, value = rows.split([2 * self.heads, self.heads], dim=1)
        wide = turning.float()
        first, second = wide.chunk(2, dim=-1)
        turned = wide * rotation.cos + torch.cat([second, first], dim=-1) * rotation.sin
        query, key = turned.to(x.dtype).chunk(2, dim=1)
        return query, key, value


class CompactSwiGLU(nn.Module):
    """SwiGLU with one product for gate and up."""

    def __init__(self, mlp: SwiGLU) -> None:
        super().__init__()
        self.gate_up_proj = _linear(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
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
        of_token, of_feature = drafter.fc.weight.detach().chunk(2, dim=1)
        table = F.linear(
            drafter.embed_tokens.weight.detach().float(),
            of_token.float(),
            None if drafter.fc.bias is None else drafter.fc.bias.detach().float(),
        )
        self.token_share = _frozen(table.to(of_token.dtype))
        self.fc = _linear(of_feature.contiguous())
        self.layers = nn.ModuleList([_compact_layer(drafter.layers[0])])
        self.register_buffer("rotation", _half_split_rotation(drafter.rotation), persistent=False)

    def fuse(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Input rows ``[B, A, D]`` of next tokens ``[B, A]`` and features ``[B, A or 1, D]``."""
        out: Tensor = self.fc(features) + F.embedding(tokens, self.token_share)
        return out


def _half_split_rotation(table: Tensor) -> Tensor:
    """Cosines and signed sines at full width ``[2, L, Dh]``."""
    cos, sin = table
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)])


def _shallow(module: nn.Module) -> nn.Module:
    """A copy whose children can be replaced without touching the original; tensors are shared."""
    copy = module.__new__(type(module))
    copy.__dict__ = module.__dict__.copy()
    for store in ("_parameters", "_buffers", "_modules"):
        copy.__dict__[store] = module.__dict__[store].copy()
    return copy


def _compact_layer(layer: nn.Module) -> nn.Module:
    copy = _shallow(layer)
    copy.self_attn = CompactAttention(layer.self_attn)  # type: ignore[arg-type]
    copy.mlp = CompactSwiGLU(layer.mlp)  # type: ignore[arg-type]
    return copy


@torch.no_grad()
def compact_target(target: Target) -> Target:
    """A target with the same forward pass over compact layers; the original stays as it is."""
    copy = _shallow(target)
    trunk = _shallow(target.model)
    trunk.layers = nn.ModuleList(_compact_layer(layer) for layer in target.model.layers)
    copy.model = trunk
    copy.rotation = _half_split_rotation(target.rotation)
    assert isinstance(copy, Target)  # noqa: S101 - for the type checker
    return copy


@torch.no_grad()
def compact_drafter(drafter: Drafter) -> CompactDrafter:
    """A drafter with the same forward pass over a compact layer."""
    return CompactDrafter(drafter)
