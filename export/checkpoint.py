"""Checkpoints: state dicts from files of the layouts in use, renamed to this package's names, and checked.

Reads safetensors, ``.npz``, PyTorch files (tensors only: a pickle that wants to run code is refused) and
folders of those, sharded or not. Shapes tell most of a model's sizes; heads they cannot tell.
"""

import json
import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vvs.errors import CheckpointError
from vvs.export.drafter import DrafterConfig
from vvs.export.llamagen import (
    CaptionConditioning,
    ClassConditioning,
    Conditioning,
    TargetConfig,
    WordConditioning,
)
from vvs.export.vq import VQConfig
from vvs.geometry import Geometry

State = dict[str, Tensor]

NESTINGS = ("model", "module", "state_dict")
"""Keys under which training scripts wrap a state dict."""
FOLDER_FILES = ("model.safetensors", "pytorch_model.bin")
DERIVED = ("freqs_cis", "inv_freq", "codebook_used")
"""Last parts of names of tensors that are computed, not trained, and so not loaded."""
MOST_NAMED = 3
"""Keys named in an error before the rest is counted."""


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

# Original LlamaGen names, and ours. ``wqkv`` is split apart on the way.
RENAMED = (
    (r"^tok_embeddings\.", "model.embed_tokens."),
    (r"^cls_embedding\.", "model.cls_embedding."),
    (r"^norm\.", "model.norm."),
    (r"^output\.", "lm_head."),
    (r"^layers\.(\d+)\.attention\.wo\.", r"model.layers.\1.self_attn.o_proj."),
    (r"^layers\.(\d+)\.feed_forward\.w1\.", r"model.layers.\1.mlp.gate_proj."),
    (r"^layers\.(\d+)\.feed_forward\.w3\.", r"model.layers.\1.mlp.up_proj."),
    (r"^layers\.(\d+)\.feed_forward\.w2\.", r"model.layers.\1.mlp.down_proj."),
    (r"^layers\.(\d+)\.attention_norm\.", r"model.layers.\1.input_layernorm."),
    (r"^layers\.(\d+)\.ffn_norm\.", r"model.layers.\1.post_attention_layernorm."),
)
FUSED = re.compile(r"^layers\.(\d+)\.attention\.wqkv\.weight$")


def read_state(path: Path) -> State:
    """The state dict of a checkpoint file, or of a folder of such files.

    Raises:
        CheckpointError: it is missing, damaged, of an unknown kind, or wants to run code.

    """
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    readers = {".safetensors": _read_safetensors, ".npz": _read_npz}
    readers |= dict.fromkeys((".pt", ".pth", ".bin"), _read_torch)
    if path.suffix not in readers:
        raise CheckpointError(f"{path} is no checkpoint: it must end in one of {', '.join(readers)}")
    state = _unnested(readers[path.suffix](path))
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(f"{path} holds no tensors")
    return {name: value for name, value in tensors.items() if name.rsplit(".", 1)[-1] not in DERIVED}


def read_config(path: Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint folder; empty for files and folders without one."""
    config = path / "config.json"
    if not config.is_file():
        return {}
    try:
        data = json.loads(config.read_text())
    except ValueError as error:
        raise CheckpointError(f"{config} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{config} holds a {type(data).__name__}, but it must hold an object")
    return data


def _read_folder(folder: Path) -> State:
    for name in FOLDER_FILES:
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(folder, index)
        if (folder / name).is_file():
            return read_state(folder / name)
    raise CheckpointError(
        f"the folder {folder} holds no checkpoint: it needs {' or '.join(FOLDER_FILES)}, "
        "whole or with an index"
    )


def _read_shards(folder: Path, index: Path) -> State:
    try:
        places: dict[str, str] = json.loads(index.read_text())["weight_map"]
        files = sorted(set(places.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged: it has no weight_map") from error
    state: State = {}
    for file in files:
        if Path(file).name != file:
            raise CheckpointError(f"{index} names the shard {file!r}, but shards must lie beside it")
        state |= read_state(folder / file)
    return state


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or truncated: {error}") from error


def _read_npz(path: Path) -> Mapping[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged or truncated: {error}") from error


def _read_torch(path: Path) -> Mapping[str, Any]:
    try:
        data = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        if "global" in str(error).lower():
            raise CheckpointError(
                f"{path} holds Python objects besides tensors and would have to run code to load; "
                "save its state dict alone, or as safetensors"
            ) from error
        raise CheckpointError(f"{path} is damaged or truncated") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is damaged or truncated") from error
    if not isinstance(data, Mapping):
        raise CheckpointError(f"{path} holds a {type(data).__name__}, but it must hold a state dict")
    return data


def _unnested(data: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in NESTINGS:
        inner = data.get(key)
        if isinstance(inner, Mapping):
            return _unnested(inner)
    return data


def rename_target(state: State) -> State:
    """A target's state in this package's names, from either published layout."""
    if "tok_embeddings.weight" not in state:
        return state
    renamed: State = {}
    for name, tensor in state.items():
        fused = FUSED.match(name)
        if fused:
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"model.layers.{fused[1]}.self_attn.{part}_proj.weight"] = rows
            continue
        for pattern, ours in RENAMED:
            name = re.sub(pattern, ours, name)  # at most one pattern matches
        renamed[name] = tensor
    return renamed


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def load_into(module: nn.Module, state: State, what: str) -> None:
    """Copy ``state`` into ``module``, whose tensors keep their dtypes.

    Args:
        module: takes the tensors.
        state: in the module's names.
        what: the model in error messages, such as ``the drafter demo.safetensors``.

    Raises:
        CheckpointError: a key is missing or unknown, or a shape is another.

    """
    wanted = module.state_dict()
    missing = sorted(set(wanted) - set(state))
    if missing:
        raise CheckpointError(f"{what} lacks {_listed(missing)}")
    unexpected = sorted(set(state) - set(wanted))
    if unexpected:
        raise CheckpointError(f"{what} has {_listed(unexpected)}, which the model does not know")
    for name, tensor in wanted.items():
        if state[name].shape != tensor.shape:
            raise CheckpointError(
                f"{what}: {name} is {list(state[name].shape)}, but the model's is {list(tensor.shape)}"
            )
    module.load_state_dict(state)


def _shape(state: State, name: str, what: str) -> tuple[int, ...]:
    if name not in state:
        raise CheckpointError(f"{what} lacks {name}, so its sizes cannot be told")
    return tuple(state[name].shape)


def _count(state: State, pattern: str) -> int:
    """One more than the largest number that ``pattern`` finds in a name."""
    found = (re.match(pattern, name) for name in state)
    return max((int(match[1]) for match in found if match), default=-1) + 1


def _conditioning(state: State, what: str) -> tuple[Conditioning, int]:
    """Conditioning and prompt length."""
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
        f"{what} has {layers} layers of {hidden}, which is no published size, so say how many heads it has"
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
) -> TargetConfig:
    """A target's sizes from its tensors, in this package's names; ``heads`` is looked up if left out."""
    vocabulary, hidden = _shape(state, "model.embed_tokens.weight", what)
    layers = _count(state, r"model\.layers\.(\d+)\.")
    conditioning, prompt_length = _conditioning(state, what)
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
    return TargetConfig(geometry, conditioning, ffn)


def infer_drafter(state: State, geometry: Geometry, what: str) -> DrafterConfig:
    """A drafter's sizes from its tensors and its target's geometry."""
    ffn = _shape(state, "layers.0.mlp.gate_proj.weight", what)[0]
    return DrafterConfig(geometry, ffn, bias="fc.bias" in state)


def infer_vq(state: State, what: str) -> VQConfig:
    """An image tokenizer's sizes from its tensors."""
    codes, code_dim = _shape(state, "quantize.embedding.weight", what)
    channels = _shape(state, "encoder.conv_in.weight", what)[0]
    levels = _count(state, r"encoder\.conv_blocks\.(\d+)\.")
    widths = [_shape(state, f"encoder.conv_blocks.{i}.res.0.conv1.weight", what)[0] for i in range(levels)]
    return VQConfig(
        codes=codes,
        code_dim=code_dim,
        channels=channels,
        channel_multipliers=tuple(width // channels for width in widths),
        residual_blocks=_count(state, r"encoder\.conv_blocks\.0\.res\.(\d+)\."),
        latent_channels=_shape(state, "encoder.conv_out.weight", what)[0],
    )
