"""The EAGLE drafter: transformer layers over ``fc([embedding of the next token ; feature])``.

Published drafters have one layer. The first has no input norm, later ones do; there is no final norm, and
the head is the target's. Parameter names are those of the published drafters (``embed_tokens``, ``fc``,
``layers.0.*``), whose code knows more layers too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vvs.export.layers import (
    Attention,
    RMSNorm,
    Rotation,
    Rows,
    Sight,
    SwiGLU,
    picked,
    rotation_at,
    rotation_table,
)
from vvs.export.llamagen import ROPE_BASE
from vvs.geometry import Geometry


@dataclass(frozen=True)
class DrafterConfig:
    """Everything that fixes a drafter's tensors; its width and heads are the target's."""

    geometry: Geometry
    ffn: int
    norm_eps: float = 1e-6
    bias: bool = True
    layers: int = 1


class DrafterLayer(nn.Module):
    """A transformer layer; the first one has no input norm."""

    def __init__(self, config: DrafterConfig, *, first: bool) -> None:
        super().__init__()
        hidden = config.geometry.hidden
        self.input_layernorm = nn.Identity() if first else RMSNorm(hidden, config.norm_eps)
        self.self_attn = Attention(hidden, config.geometry.heads)
        self.mlp = SwiGLU(hidden, config.ffn)
        self.post_attention_layernorm = RMSNorm(hidden, config.norm_eps)

    def forward(self, x: Tensor, rotation: Rotation, sight: Sight) -> tuple[Tensor, Rows]:
        """New rows ``x [B, A, D]`` over past ones; also their key and value rows.

        Of new rows that do not attend only keys and values come out.
        """
        attended, new = self.self_attn(self.input_layernorm(x), rotation, sight)
        x = (x if sight.only is None else picked(x, sight.only)) + attended
        return x + self.mlp(self.post_attention_layernorm(x)), new

    def whole_sequence(self, x: Tensor, rotation: Rotation, visible: Tensor) -> Tensor:
        """The layer over a whole sequence, for training."""
        x = x + self.self_attn.whole_sequence(self.input_layernorm(x), rotation, visible)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Drafter(nn.Module):
    """Predicts the feature one position ahead from a feature and the token that followed it."""

    rotation: Tensor

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        geometry = config.geometry
        self.config = config
        self.embed_tokens = nn.Embedding(geometry.vocabulary, geometry.hidden)
        self.fc = nn.Linear(2 * geometry.hidden, geometry.hidden, bias=config.bias)
        self.layers = nn.ModuleList(DrafterLayer(config, first=not i) for i in range(config.layers))
        table = rotation_table(geometry.grid, geometry.prompt_length, geometry.head_dim, ROPE_BASE)
        self.register_buffer("rotation", table, persistent=False)

    def fuse(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Input rows ``[B, A, D]`` of next tokens ``[B, A]`` and features ``[B, A or 1, D]``."""
        embedded = self.embed_tokens(tokens)
        features = features.to(embedded.dtype).expand(*tokens.shape, -1)
        out: Tensor = self.fc(torch.cat([embedded, features], dim=-1))
        return out

    def forward(self, x: Tensor, rotation: Rotation, sights: Sequence[Sight]) -> tuple[Tensor, list[Rows]]:
        """Predicted features of fused rows ``x [B, A, D]``, and their new key and value rows in every layer.

        ``sights`` says for every layer what its rows attend to.
        """
        new = []
        for layer, sight in zip(self.layers, sights, strict=True):
            x, rows = layer(x, rotation, sight)
            new.append(rows)
        return x, new

    def whole_sequence(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Predicted features ``[B, L, D]`` for training, from features and next tokens of the same rows.

        The first P rows are prompt rows; the token of the last prompt row is image token 0.
        """
        rows = torch.arange(features.shape[1], device=tokens.device)
        positions = rows.unsqueeze(0) + 1
        visible = (rows[None, :] <= rows[:, None])[None, None]
        x, rotation = self.fuse(tokens, features), rotation_at(self.rotation, positions)
        for layer in self.layers:
            x = layer.whole_sequence(x, rotation, visible)  # type: ignore[operator]
        return x
