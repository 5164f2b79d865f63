"""Writes weights in the layouts that checkpoints are published in."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from vvs.export.t5 import T5Config, T5Encoder
from vvs.export.text_tokenizer import stand_in_tokenizer

State = dict[str, torch.Tensor]

ORIGINAL = (
    ("model.embed_tokens.", "tok_embeddings."),
    ("model.cls_embedding.", "cls_embedding."),
    ("model.norm.", "norm."),
    ("lm_head.", "output."),
    ("model.layers.", "layers."),
    ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
)


def original_layout(state: State) -> State:
    """A target's weights under LlamaGen's first names."""
    out: State = {}
    for name, tensor in state.items():
        for ours, theirs in ORIGINAL:
            name = name.replace(ours, theirs)
        out[name] = tensor
    for layer in {name.split(".")[1] for name in out if name.startswith("layers.")}:
        parts = [out.pop(f"layers.{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
        out[f"layers.{layer}.attention.wqkv.weight"] = torch.cat(parts)
    out["freqs_cis"] = torch.zeros(3)
    return out


def sharded(state: State, folder: Path, kind: str) -> None:
    """A folder of two shards and their index; ``kind`` is ``safetensors`` or ``bin``."""
    folder.mkdir(parents=True, exist_ok=True)
    stem, index = {
        "safetensors": ("model", "model.safetensors.index.json"),
        "bin": ("pytorch_model", "pytorch_model.bin.index.json"),
    }[kind]
    names = sorted(state)
    places = {}
    for number, members in enumerate((names[::2], names[1::2]), start=1):
        file = f"{stem}-0000{number}-of-00002.{kind}"
        shard = {name: state[name].clone() for name in members}
        if kind == "bin":
            torch.save(shard, folder / file)
        else:
            save_file(shard, folder / file)
        places |= dict.fromkeys(members, file)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def text_encoder_folder(folder: Path, hidden: int, vocabulary: int = 80) -> None:
    """A T5 as ``transformers`` saves it: shards, the decoder too, and ``tokenizer.json``."""
    config = T5Config(vocabulary, hidden, layers=2, heads=2, head_dim=4, ffn=24, buckets=8, max_distance=20)
    state = T5Encoder(config).state_dict()
    state |= {"decoder.block.0.layer.0.SelfAttention.q.weight": torch.zeros(8, hidden)}
    state |= {"lm_head.weight": torch.zeros(vocabulary, hidden)}
    sharded(state, folder, "bin")
    (folder / "tokenizer.json").write_text(stand_in_tokenizer())
    names = {
        "d_model": hidden,
        "d_kv": 4,
        "d_ff": 24,
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": vocabulary,
        "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
    }
    (folder / "config.json").write_text(json.dumps(names))
