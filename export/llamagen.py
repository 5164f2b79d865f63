"""LlamaGen as PyTorch modules: the target, and the ways a prompt becomes its first rows.

Parameter names are those of the HuggingFace-style checkpoints (``model.embed_tokens`` ...); other
layouts are renamed on loading (``vvs.export.checkpoint``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.errors import SettingsError
from vvs.export.layers import (
    Attention,
    RMSNorm,
    Rotation,
    Rows,
    Sight,
    SwiGLU,
    dtype_of,
    prompt_visibility,
    rotation_at,
    rotation_table,
)
from vvs.geometry import Geometry

ROPE_BASE = 10000.0
FFN_MULTIPLE = 256


def published_ffn_width(hidden: int) -> int:
    """FFN width of the published models: two thirds of 4 D, rounded up to a multiple of 256."""
    return -(-(8 * hidden // 3) // FFN_MULTIPLE) * FFN_MULTIPLE


@dataclass(frozen=True)
class CaptionConditioning:
    """Text-conditional: hidden states of a text encoder, ``caption_dim`` wide."""

    caption_dim: int


@dataclass(frozen=True)
class WordConditioning:
    """Text-conditional without a text encoder: one learned vector a word, ``caption_dim`` wide."""

    words: int
    caption_dim: int


@dataclass(frozen=True)
class ClassConditioning:
    """Class-conditional: one row, one learned vector a class; class number ``classes`` is 'no class'."""

    classes: int


Conditioning = CaptionConditioning | WordConditioning | ClassConditioning


@dataclass(frozen=True)
class TargetConfig:
    """Everything that fixes a LlamaGen target's tensors."""

    geometry: Geometry
    conditioning: Conditioning
    ffn: int
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        geometry = self.geometry
        if geometry.heads * geometry.head_dim != geometry.hidden:
            raise SettingsError(
                f"{geometry.heads} heads of {geometry.head_dim} do not make "
                f"a hidden size of {geometry.hidden}"
            )
        if geometry.head_dim % 4:
            raise SettingsError(f"head_dim is {geometry.head_dim}, but 2-D RoPE needs a multiple of 4")
        if isinstance(self.conditioning, ClassConditioning) and geometry.prompt_length != 1:
            raise SettingsError(
                f"a class-conditional model has 1 prompt row, but prompt_length is {geometry.prompt_length}"
            )


class CaptionProjection(nn.Module):
    """The two-layer GELU-tanh MLP from caption states to embeddings."""

    def __init__(self, caption_dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(caption_dim, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, hidden, bias=False)

    def forward(self, caption: Tensor) -> Tensor:
        """Embeddings ``[B, P, D]`` of caption states ``[B, P, C]``."""
        out: Tensor = self.fc2(F.gelu(self.fc1(caption), approximate="tanh"))
        return out


class Prompt(NamedTuple):
    """Prompt rows of a batch: embeddings ``[B, P, D]`` and which rows are real ``[B, P]`` bool."""

    embeds: Tensor
    mask: Tensor


def move_right(states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Turn right padding into left padding: roll ``states [R, P, C]`` and ``mask [R, P]`` by the padding.

    Padded states become zero, as in the published model.
    """
    length = mask.shape[1]
    count = mask.long().sum(1, keepdim=True)
    source = (torch.arange(length, device=mask.device).unsqueeze(0) + count) % length
    moved_mask = torch.gather(mask, 1, source)
    moved = torch.gather(states, 1, source.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
    return moved * moved_mask.unsqueeze(-1).to(states.dtype), moved_mask


class CaptionEmbedding(nn.Module):
    """Captions to prompt rows; the unconditional rows are learned (``uncond_embedding [P, C]``)."""

    def __init__(self, caption_dim: int, prompt_length: int, hidden: int) -> None:
        super().__init__()
        self.cap_proj = CaptionProjection(caption_dim, hidden)
        self.uncond_embedding = nn.Parameter(torch.randn(prompt_length, caption_dim) * caption_dim**-0.5)

    def project(self, states: Tensor, mask: Tensor, guidance_rows: int) -> Prompt:
        """Prompt rows of right-padded caption states ``[R, P, C]``, ``mask [R, P]`` bool.

        With two guidance rows the unconditional rows follow; they share the conditional rows' mask, as
        published.
        """
        caption, valid = move_right(states, mask)
        if guidance_rows == 2:
            caption = torch.cat([caption, self.uncond_embedding.to(caption.dtype).expand_as(caption)])
            valid = torch.cat([valid, valid])
        return Prompt(self.cap_proj(caption), valid)

    def forward(self, hidden_states: Tensor, mask: Tensor, guidance_rows: int) -> Prompt:
        """Prompt rows of caption states."""
        return self.project(hidden_states, mask, guidance_rows)


class WordEmbedding(CaptionEmbedding):
    """Word ids to prompt rows: a table of caption states, then as captions."""

    def __init__(self, words: int, caption_dim: int, prompt_length: int, hidden: int) -> None:
        super().__init__(caption_dim, prompt_length, hidden)
        self.word_embedding = nn.Embedding(words, caption_dim)

    def forward(self, token_ids: Tensor, mask: Tensor, guidance_rows: int) -> Prompt:
        """Prompt rows of right-padded word ids ``[R, P]``."""
        return self.project(self.word_embedding(token_ids), mask, guidance_rows)


class ClassEmbedding(nn.Module):
    """Class ids ``[R]`` to one prompt row each."""

    def __init__(self, classes: int, hidden: int) -> None:
        super().__init__()
        self.classes = classes
        self.embedding_table = nn.Embedding(classes + 1, hidden)

    def forward(self, class_ids: Tensor, guidance_rows: int) -> Prompt:
        """One prompt row for each class id."""
        if guidance_rows == 2:
            class_ids = torch.cat([class_ids, torch.full_like(class_ids, self.classes)])
        embeds = self.embedding_table(class_ids).unsqueeze(1)
        return Prompt(embeds, torch.ones_like(class_ids, dtype=torch.bool).unsqueeze(1))


class TargetLayer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        hidden = config.geometry.hidden
        self.self_attn = Attention(hidden, config.geometry.heads)
        self.mlp = SwiGLU(hidden, config.ffn)
        self.input_layernorm = RMSNorm(hidden, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(hidden, config.norm_eps)

    def forward(self, x: Tensor, rotation: Rotation, past: Rows, bias: Tensor) -> tuple[Tensor, Rows]:
        """New rows ``x [B, T, D]`` over cached ones; also their key and value rows."""
        attended, new = self.self_attn(self.input_layernorm(x), rotation, Sight([past], bias))
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), new

    def whole_sequence(self, x: Tensor, rotation: Rotation, visible: Tensor) -> Tensor:
        """The layer over a whole sequence, for training."""
        x = x + self.self_attn.whole_sequence(self.input_layernorm(x), rotation, visible)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


def _prompt_embedding(config: TargetConfig) -> nn.Module:
    geometry, conditioning = config.geometry, config.conditioning
    match conditioning:
        case CaptionConditioning():
            return CaptionEmbedding(conditioning.caption_dim, geometry.prompt_length, geometry.hidden)
        case WordConditioning():
            return WordEmbedding(
                conditioning.words, conditioning.caption_dim, geometry.prompt_length, geometry.hidden
            )
        case ClassConditioning():
            return ClassEmbedding(conditioning.classes, geometry.hidden)


class _Trunk(nn.Module):
    """Embeddings, layers and the final norm; exists for the published names' prefix ``model.``."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        geometry = config.geometry
        self.embed_tokens = nn.Embedding(geometry.vocabulary, geometry.hidden)
        self.cls_embedding = _prompt_embedding(config)
        self.layers = nn.ModuleList(TargetLayer(config) for _ in range(geometry.layers))
        self.norm = RMSNorm(geometry.hidden, config.norm_eps)


class TargetOutput(NamedTuple):
    """Features ``[B, T, D]`` and the new key and value rows of every layer ``[B, H, T, Dh]``."""

    features: Tensor
    rows: list[Rows]


class Target(nn.Module):
    """The LlamaGen transformer."""

    rotation: Tensor

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        geometry = config.geometry
        self.config = config
        self.model = _Trunk(config)
        self.lm_head = nn.Linear(geometry.hidden, geometry.vocabulary, bias=False)
        table = rotation_table(geometry.grid, geometry.prompt_length, geometry.head_dim, ROPE_BASE)
        self.register_buffer("rotation", table, persistent=False)

    def initialise(self) -> None:
        """Start from the published scheme: normal weights of deviation 0.02, an output head of zeros."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(self.lm_head.weight)

    def encode_prompt(self, *conditioning: Tensor) -> Prompt:
        """Prompt rows of the conditioning inputs (see the embedding classes)."""
        prompt: Prompt = self.model.cls_embedding(*conditioning, self.config.geometry.guidance_rows)
        return prompt

    def forward(self, embeds: Tensor, positions: Tensor, bias: Tensor, past: Sequence[Rows]) -> TargetOutput:
        """New rows ``embeds [B, T, D]`` over the cached rows of every layer.

        ``bias [B, 1, T, S + T]`` says who sees whom (:func:`visibility_bias`), cached rows first.
        """
        rotation = rotation_at(self.rotation, positions)
        x, new = embeds, []
        for layer, cached in zip(self.model.layers, past, strict=True):
            x, rows = layer(x, rotation, cached, bias)
            new.append(rows)
        return TargetOutput(self.model.norm(x), new)

    def whole_sequence(self, prompt: Prompt, tokens: Tensor) -> Tensor:
        """Features ``[B, P + M, D]`` of prompts followed by image tokens ``[B, M]``, for training."""
        embeds = torch.cat([prompt.embeds, self.model.embed_tokens(tokens).to(prompt.embeds.dtype)], dim=1)
        positions = torch.arange(embeds.shape[1], device=tokens.device).unsqueeze(0)
        rotation = rotation_at(self.rotation, positions)
        visible = sequence_visibility(prompt.mask, tokens.shape[1]).unsqueeze(1)
        x = embeds
        for layer in self.model.layers:
            x = layer.whole_sequence(x, rotation, visible)  # type: ignore[operator]
        out: Tensor = self.model.norm(x)
        return out

    def logits(self, features: Tensor) -> Tensor:
        """Unguided float32 logits ``[..., V]`` of features ``[..., D]``."""
        out: Tensor = self.lm_head(features.to(dtype_of(self.lm_head)))
        return out.float()

    def guided_logits(self, features: Tensor, cfg_scale: Tensor) -> Tensor:
        """Guided float32 logits ``[R, T, V]`` of the features ``[B, T, D]`` of all guidance rows."""
        return guided_logits(self.lm_head, features, cfg_scale, self.config.geometry.guidance_rows)


def guided_logits(head: nn.Module, features: Tensor, cfg_scale: Tensor, guidance_rows: int) -> Tensor:
    """Float32 logits ``[R, T, V]`` of features ``[B, T, D]``, guided if there are two guidance rows.

    The head is linear, so guiding the features first gives the same logits with half the work.
    """
    if guidance_rows == 2:
        features = guide(features.float(), cfg_scale)
    out: Tensor = head(features.to(dtype_of(head)))
    return out.float()


def sequence_visibility(prompt_mask: Tensor, image_rows: int) -> Tensor:
    """Who sees whom ``[B, L, L]`` in a sequence of P prompt rows and ``image_rows`` causal image rows."""
    prompt = prompt_visibility(prompt_mask)
    rows = torch.arange(image_rows, device=prompt_mask.device)
    causal = (rows[None, :] <= rows[:, None]).expand(len(prompt_mask), -1, -1)
    above = torch.cat([prompt, prompt.new_zeros(*prompt.shape[:2], image_rows)], dim=2)
    seen = prompt_mask.unsqueeze(1).expand(-1, image_rows, -1)
    return torch.cat([above, torch.cat([seen, causal], dim=2)], dim=1)


def guide(rows: Tensor, cfg_scale: Tensor) -> Tensor:
    """Classifier-free guidance ``u + s (c - u)``: ``[R, ...]`` of ``[2 R, ...]`` and ``cfg_scale [R]``."""
    requests = cfg_scale.shape[0]
    conditional, unconditional = rows[:requests], rows[requests:]
    scale = cfg_scale.reshape(-1, *[1] * (rows.ndim - 1))
    out: Tensor = unconditional + scale * (conditional - unconditional)
    return out
