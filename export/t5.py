"""The encoder of T5 and FLAN-T5: token ids to the caption states that text-conditional models take.

Parameter names are those of the published checkpoints (``shared``, ``encoder.block.i.layer.0.SelfAttention``
...). Attention scores are not scaled, positions enter as a learned bias by bucketed distance, norms have no
bias. The residual stream stays in float32, whatever the weights' dtype: it outgrows half precision.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.errors import SettingsError
from vvs.export.layers import MASKED, RMSNorm

ACTIVATIONS = ("gelu", "relu", "silu")


@dataclass(frozen=True)
class T5Config:
    """Everything that fixes a T5 encoder's tensors; the defaults are those of FLAN-T5-XL."""

    vocabulary: int = 32128
    hidden: int = 2048
    layers: int = 24
    heads: int = 32
    head_dim: int = 64
    ffn: int = 5120
    buckets: int = 32
    max_distance: int = 128
    """Distances from here on share the last bucket."""
    gated: bool = True
    """Whether the feed-forward's activation gates a second product."""
    activation: str = "gelu"
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise SettingsError(
                f"a T5's activation is {self.activation!r}, but it must be one of {', '.join(ACTIVATIONS)}"
            )
        if self.buckets < 4 or self.buckets % 4:
            raise SettingsError(f"a T5's buckets are {self.buckets}, but they must be a multiple of 4")
        if self.max_distance <= self.buckets // 4:
            raise SettingsError(
                f"a T5's max_distance is {self.max_distance}, but {self.buckets} buckets need more than "
                f"{self.buckets // 4}"
            )

    def random_scale(self, name: str) -> float:
        """Factor of a random weight: T5 does not scale its scores, so its queries start that much smaller."""
        return self.head_dim**-0.5 if name.endswith(".SelfAttention.q.weight") else 1.0


def distance_buckets(length: int, buckets: int, max_distance: int) -> Tensor:
    """The bucket ``[length, length]`` of every pair (query, key).

    Half of the buckets are for keys to the right. Of each half, the first half are single distances, the
    rest grow with the logarithm of the distance up to ``max_distance``. Computed outside of PyTorch, so that
    it is one constant of a graph: engine builders stumble over integer arithmetic on constants.
    """
    places = np.arange(length)
    offset = places[None, :] - places[:, None]
    half = buckets // 2
    exact = half // 2
    distance = np.abs(offset)
    reach = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    growth = reach / np.float32(math.log(max_distance / exact)) * np.float32(half - exact)
    far = np.minimum(exact + growth.astype(np.int64), half - 1)
    found = np.where(distance < exact, distance, far) + half * (offset > 0)
    return torch.tensor(found.tolist())


class _SelfAttention(nn.Module):
    """Multi-head attention over the whole text; the first one keeps the bias by distance for all."""

    def __init__(self, config: T5Config, *, keeps_bias: bool) -> None:
        super().__init__()
        inner = config.heads * config.head_dim
        self.heads = config.heads
        self.q = nn.Linear(config.hidden, inner, bias=False)
        self.k = nn.Linear(config.hidden, inner, bias=False)
        self.v = nn.Linear(config.hidden, inner, bias=False)
        self.o = nn.Linear(inner, config.hidden, bias=False)
        if keeps_bias:
            self.relative_attention_bias = nn.Embedding(config.buckets, config.heads)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """``x [R, P, D]``, ``bias [R, H, P, P]`` float32."""
        query, key, value = (
            linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in (self.q, self.k, self.v)
        )
        scores = torch.matmul(query, key.transpose(2, 3)).float() + bias
        attended = torch.matmul(torch.softmax(scores, dim=-1).to(x.dtype), value)
        out: Tensor = self.o(attended.transpose(1, 2).flatten(2))
        return out


class _FeedForward(nn.Module):
    """``wo(act(wi x))``, or gated ``wo(act(wi_0 x) * wi_1 x)``."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.activation = config.activation
        self.gated = config.gated
        if config.gated:
            self.wi_0 = nn.Linear(config.hidden, config.ffn, bias=False)
            self.wi_1 = nn.Linear(config.hidden, config.ffn, bias=False)
        else:
            self.wi = nn.Linear(config.hidden, config.ffn, bias=False)
        self.wo = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Float32 ``[R, P, D]``."""
        inner = self._activate((self.wi_0 if self.gated else self.wi)(x).float())
        if self.gated:
            inner = inner * self.wi_1(x).float()
        if x.dtype != torch.float16:
            out: Tensor = self.wo(inner.to(x.dtype)).float()
            return out
        # The published encoders leave half precision's range here; the product is linear, so scale it.
        scale = inner.abs().amax(-1, keepdim=True).clamp(min=1)
        scaled: Tensor = self.wo((inner / scale).to(x.dtype)).float() * scale
        return scaled

    def _activate(self, x: Tensor) -> Tensor:
        match self.activation:
            case "gelu":
                return F.gelu(x, approximate="tanh")
            case "relu":
                return F.relu(x)
            case _:
                return F.silu(x)


class _AttentionLayer(nn.Module):
    def __init__(self, config: T5Config, *, keeps_bias: bool) -> None:
        super().__init__()
        self.SelfAttention = _SelfAttention(config, keeps_bias=keeps_bias)
        self.layer_norm = RMSNorm(config.hidden, config.norm_eps)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        normed = self.layer_norm(x).to(self.layer_norm.weight.dtype)
        out: Tensor = x + self.SelfAttention(normed, bias).float()
        return out


class _FeedForwardLayer(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.DenseReluDense = _FeedForward(config)
        self.layer_norm = RMSNorm(config.hidden, config.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.DenseReluDense(self.layer_norm(x).to(self.layer_norm.weight.dtype))
        return out


class _Block(nn.Module):
    def __init__(self, config: T5Config, *, keeps_bias: bool) -> None:
        super().__init__()
        self.layer = nn.ModuleList(
            [_AttentionLayer(config, keeps_bias=keeps_bias), _FeedForwardLayer(config)]
        )

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        out: Tensor = self.layer[1](self.layer[0](x, bias))
        return out


class _Stack(nn.Module):
    """Blocks and the final norm; exists for the published names' prefix ``encoder.``."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.block = nn.ModuleList(_Block(config, keeps_bias=i == 0) for i in range(config.layers))
        self.final_layer_norm = RMSNorm(config.hidden, config.norm_eps)

    @property
    def bias_by_distance(self) -> nn.Embedding:
        """The table of all blocks, which the first one keeps."""
        return self.get_submodule("block.0.layer.0.SelfAttention.relative_attention_bias")  # type: ignore[return-value]


class T5Encoder(nn.Module):
    """Token ids ``[R, P]`` and ``mask [R, P]`` (real tokens first) to float32 states ``[R, P, D]``."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocabulary, config.hidden)
        self.encoder = _Stack(config)

    def forward(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Caption states; those of padding are arbitrary."""
        bias = self._bias(mask)
        x = self.shared(token_ids).float()
        for block in self.encoder.block:
            x = block(x, bias)
        out: Tensor = self.encoder.final_layer_norm(x)
        return out.float()

    def _bias(self, mask: Tensor) -> Tensor:
        """What is added to attention scores ``[R, H, P, P]``: by distance, and against padding."""
        config = self.config
        buckets = distance_buckets(mask.shape[1], config.buckets, config.max_distance).to(mask.device)
        by_distance = F.embedding(buckets, self.encoder.bias_by_distance.weight).float()
        by_distance = by_distance.permute(2, 0, 1).unsqueeze(0)
        return by_distance + torch.where(mask, 0.0, MASKED)[:, None, None, :]
