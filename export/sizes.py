"""Sizes: what the shapes of a checkpoint's tensors, and its ``config.json``, say about a model.

Shapes tell everything but the number of heads of a target: that is looked up, or said.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vvs.errors import CheckpointError, SettingsError
from vvs.export.checkpoint import State
from vvs.export.drafter import DrafterConfig
from vvs.export.llamagen import (
    CaptionConditioning,
    ClassConditioning,
    Conditioning,
    TargetConfig,
    WordConditioning,
)
from vvs.export.t5 import T5Config
from vvs.export.vq import VQConfig
from vvs.geometry import Geometry

Config = Mapping[str, Any]
"""Contents of a ``config.json``; empty if there is none."""


@dataclass(frozen=True)
class PublishedSize:
    """What tensor shapes identify a published model by, and the heads they do not show."""

    layers: int
    heads: int
    hidden: int


PUBLISHED_SIZES = {
    "B": PublishedSize(12, 12, 768),
    "L": PublishedSize(24, 16, 1024),
    "XL": PublishedSize(36, 20, 1280),
    "XXL": PublishedSize(48, 24, 1536),
    "3B": PublishedSize(24, 32, 3200),
}


def _shape(state: State, name: str, what: str) -> tuple[int, ...]:
    if name not in state:
        raise CheckpointError(f"{what} lacks {name}, so its sizes cannot be told")
    return tuple(state[name].shape)


def _count(state: State, pattern: str) -> int:
    """One more than the largest number that ``pattern`` finds in a name."""
    found = (re.match(pattern, name) for name in state)
    return max((int(match[1]) for match in found if match), default=-1) + 1


def infer_conditioning(state: State, what: str) -> tuple[Conditioning, int]:
    """How a target is prompted, and its prompt length P."""
    prefix = "model.cls_embedding."
    if f"{prefix}embedding_table.weight" in state:
        return ClassConditioning(state[f"{prefix}embedding_table.weight"].shape[0] - 1), 1
    prompt_length, caption_dim = _shape(state, f"{prefix}uncond_embedding", what)
    if f"{prefix}word_embedding.weight" in state:
        return WordConditioning(state[f"{prefix}word_embedding.weight"].shape[0], caption_dim), prompt_length
    return CaptionConditioning(caption_dim), prompt_length


def published_heads(layers: int, hidden: int, what: str) -> int:
    """Heads of the published model of these sizes."""
    for size in PUBLISHED_SIZES.values():
        if (size.layers, size.hidden) == (layers, hidden):
            return size.heads
    raise CheckpointError(
        f"{what} has {layers} layers of {hidden}, which is no published size, so say how many heads it has "
        "(geometry.heads in a recipe, num_attention_heads in config.json)"
    )


def infer_target(
    state: State,
    what: str,
    *,
    grid: int,
    image_size: int,
    code_dim: int,
    guidance_rows: int = 2,
    heads: int | None = None,
    config: Config | None = None,
) -> TargetConfig:
    """A target's sizes from its tensors, in this package's names; ``heads`` is looked up if left out."""
    config = config or {}
    heads = heads or config.get("num_attention_heads")
    vocabulary, hidden = _shape(state, "model.embed_tokens.weight", what)
    layers = _count(state, r"model\.layers\.(\d+)\.")
    conditioning, prompt_length = infer_conditioning(state, what)
    heads = heads or published_heads(layers, hidden, what)
    if hidden % heads:
        raise CheckpointError(f"{what} has a hidden size of {hidden}, which {heads} heads do not divide")
    geometry = Geometry(
        grid=grid,
        vocabulary=vocabulary,
        code_dim=code_dim,
        prompt_length=prompt_length,
        layers=layers,
        heads=heads,
        head_dim=hidden // heads,
        hidden=hidden,
        guidance_rows=guidance_rows,
        image_size=image_size,
    )
    ffn = _shape(state, "model.layers.0.mlp.gate_proj.weight", what)[0]
    check_config(
        config,
        {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "intermediate_size": ffn,
        },
        what,
    )
    return TargetConfig(geometry, conditioning, ffn, config.get("rms_norm_eps", TargetConfig.norm_eps))


def infer_drafter(state: State, geometry: Geometry, what: str, config: Config | None = None) -> DrafterConfig:
    """A drafter's sizes from its tensors and its target's geometry.

    Raises:
        CheckpointError: it was made for a target of another width or vocabulary.

    """
    config = config or {}
    vocabulary, hidden = _shape(state, "embed_tokens.weight", what)
    if hidden != geometry.hidden:
        raise CheckpointError(
            f"{what} is {hidden} wide (embed_tokens.weight is {[vocabulary, hidden]}), "
            f"but the target is {geometry.hidden} wide"
        )
    if vocabulary != geometry.vocabulary:
        raise CheckpointError(
            f"{what} knows {vocabulary} tokens (embed_tokens.weight is {[vocabulary, hidden]}), "
            f"but the target knows {geometry.vocabulary}"
        )
    ffn = _shape(state, "layers.0.mlp.gate_proj.weight", what)[0]
    layers = _count(state, r"layers\.(\d+)\.")
    found = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": geometry.heads,
        "intermediate_size": ffn,
    }
    check_config(config, found, what)
    norm_eps = config.get("rms_norm_eps", DrafterConfig.norm_eps)
    return DrafterConfig(geometry, ffn, norm_eps, "fc.bias" in state, layers)


def infer_vq(state: State, what: str) -> VQConfig:
    """An image tokenizer's sizes from its tensors."""
    codes, code_dim = _shape(state, "quantize.embedding.weight", what)
    channels = _shape(state, "encoder.conv_in.weight", what)[0]
    levels = _count(state, r"encoder\.conv_blocks\.(\d+)\.")
    widths = [_shape(state, f"encoder.conv_blocks.{i}.res.0.conv1.weight", what)[0] for i in range(levels)]
    try:
        return VQConfig(
            codes=codes,
            code_dim=code_dim,
            channels=channels,
            channel_multipliers=tuple(width // channels for width in widths),
            residual_blocks=_count(state, r"encoder\.conv_blocks\.0\.res\.(\d+)\."),
            latent_channels=_shape(state, "encoder.conv_out.weight", what)[0],
        )
    except SettingsError as error:
        raise CheckpointError(f"{what}: {error}") from error


def infer_text_encoder(state: State, what: str, config: Config | None = None) -> T5Config:
    """A T5 encoder's sizes from its tensors; what they do not tell is read from ``config.json``."""
    config = config or {}
    vocabulary, hidden = _shape(state, "shared.weight", what)
    first = "encoder.block.0.layer"
    buckets, heads = _shape(state, f"{first}.0.SelfAttention.relative_attention_bias.weight", what)
    inner = _shape(state, f"{first}.0.SelfAttention.q.weight", what)[0]
    gated = f"{first}.1.DenseReluDense.wi_0.weight" in state
    ffn = _shape(state, f"{first}.1.DenseReluDense.{'wi_0' if gated else 'wi'}.weight", what)[0]
    layers = _count(state, r"encoder\.block\.(\d+)\.")
    projection = str(config.get("feed_forward_proj", "gated-gelu" if gated else "relu"))
    if projection.startswith("gated-") != gated:
        raise CheckpointError(
            f"config.json of {what} says feed_forward_proj is {projection!r}, "
            f"but its tensors {'have' if gated else 'lack'} {first}.1.DenseReluDense.wi_0.weight"
        )
    check_config(
        config,
        {
            "d_model": hidden,
            "d_kv": inner // heads,
            "d_ff": ffn,
            "num_layers": layers,
            "num_heads": heads,
            "vocab_size": vocabulary,
            "relative_attention_num_buckets": buckets,
        },
        what,
    )
    try:
        return T5Config(
            vocabulary=vocabulary,
            hidden=hidden,
            layers=layers,
            heads=heads,
            head_dim=inner // heads,
            ffn=ffn,
            buckets=buckets,
            max_distance=config.get("relative_attention_max_distance", T5Config.max_distance),
            gated=gated,
            activation=projection.removeprefix("gated-"),
            norm_eps=config.get("layer_norm_epsilon", T5Config.norm_eps),
        )
    except SettingsError as error:
        raise CheckpointError(f"{what}: {error}") from error


def check_config(config: Config, found: Mapping[str, int], what: str) -> None:
    """Raise CheckpointError if ``config.json`` contradicts what the tensors say."""
    for name, value in found.items():
        if config.get(name) not in (None, value):
            raise CheckpointError(
                f"config.json of {what} says {name} is {config[name]}, but its tensors make it {value}"
            )
