"""Checkpoints: state dicts from files of the layouts in use, renamed to this package's names, and checked.

Reads safetensors, ``.npz``, PyTorch files (tensors only: a pickle that wants to run code is refused) and
folders of those, sharded or not. Tensors are mapped from disk wherever the format allows it, so that reading
costs no memory. What the shapes say about a model is the business of :mod:`vvs.export.sizes`.
"""

import hashlib
import json
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vvs.errors import CheckpointError

State = dict[str, Tensor]

NESTINGS = ("model", "module", "state_dict")
"""Keys under which training scripts wrap a state dict."""
FOLDER_FILES = ("model.safetensors", "pytorch_model.bin")
DERIVED = ("freqs_cis", "inv_freq", "codebook_used")
"""Last parts of names of tensors that are computed, not trained, and so not loaded."""
MOST_NAMED = 3
"""Keys named in an error before the rest is counted."""


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


def add_tensors(digest: "hashlib._Hash", state: Mapping[str, Tensor]) -> None:
    """Add names, dtypes, shapes and values of all tensors to a digest, in order of their names."""
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def sha256_of_tensors(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of a state dict, in hexadecimal."""
    digest = hashlib.sha256()
    add_tensors(digest, state)
    return digest.hexdigest()


def rename_target(state: State) -> State:
    """A target's state in this package's names, from either published layout."""
    if not any(FUSED.match(name) for name in state):
        return state
    renamed: State = {}
    for name, tensor in state.items():
        fused = FUSED.match(name)
        if fused:
            if len(tensor) % 3:
                raise CheckpointError(
                    f"{name} is {list(tensor.shape)}, but query, key and value of one size make it 3 D rows"
                )
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


def rename_text_encoder(state: State) -> State:
    """The encoder's part of a T5 checkpoint, decoder or not, with its embedding under ``shared``."""
    kept = {name: tensor for name, tensor in state.items() if name.startswith(("encoder.", "shared."))}
    embedding = kept.pop("encoder.embed_tokens.weight", None)
    if embedding is not None:
        kept.setdefault("shared.weight", embedding)
    return kept


def load_into(
    module: nn.Module,
    state: State,
    what: str,
    dtype: Callable[[str], torch.dtype] | None = None,
) -> None:
    """Load ``state`` into ``module``.

    A module that was built without memory (on the ``meta`` device) takes the tensors themselves, which may be
    mapped from a file; only those of another dtype than wanted are copied, one by one. Any other module
    keeps its own memory and dtypes.

    Args:
        module: takes the tensors.
        state: in the module's names.
        what: the model in error messages, such as ``the drafter demo.safetensors``.
        dtype: of a tensor, by its name, of a module without memory; None is the one it was built in.

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
    if not any(tensor.is_meta for tensor in wanted.values()):
        module.load_state_dict(state)
        return
    module.load_state_dict(
        {name: state[name].to(dtype(name) if dtype else tensor.dtype) for name, tensor in wanted.items()},
        assign=True,
    )
