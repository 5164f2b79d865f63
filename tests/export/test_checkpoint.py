"""Checkpoint layouts, old and new, and what is said about files that do not fit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from layouts import State, original_layout
from safetensors.torch import save_file

from vvs.errors import CheckpointError
from vvs.export.checkpoint import load_into, read_config, read_state, rename_target
from vvs.export.llamagen import ClassConditioning, Target, TargetConfig
from vvs.export.sizes import infer_drafter, infer_target, infer_vq, published_heads
from vvs.geometry import Geometry

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet


@pytest.fixture(scope="module")
def state(tiny_models: ModelSet) -> State:
    return {name: tensor.clone() for name, tensor in tiny_models.target.state_dict().items()}


def same_target(path: Path, models: ModelSet) -> None:
    """The checkpoint, loaded from nothing but its tensors, gives the same features."""
    found = rename_target(read_state(path))
    g = models.geometry
    config = infer_target(
        found, "the target", grid=g.grid, image_size=g.image_size, code_dim=g.code_dim, heads=g.heads
    )
    assert config == models.target.config
    target = Target(config).eval()
    load_into(target, found, "the target")
    ids, mask = torch.tensor([[2, 3, 0, 0, 0, 0]]), torch.tensor([[True, True] + [False] * 4])
    tokens = torch.arange(10).expand(2, -1)
    with torch.no_grad():
        got, expected = (
            t.whole_sequence(t.encode_prompt(ids, mask), tokens) for t in (target, models.target)
        )
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("nesting", [None, "model", "module", "state_dict"])
def test_original_layout(tmp_path: Path, state: State, tiny_models: ModelSet, nesting: str | None) -> None:
    original = original_layout(state)
    path = tmp_path / "c.pt"
    torch.save({nesting: original, "epoch": 3} if nesting else original, path)
    same_target(path, tiny_models)


@pytest.mark.parametrize("name", ["a.safetensors", "a.npz", "a.bin", "legacy.pth"])
def test_single_files(tmp_path: Path, state: State, tiny_models: ModelSet, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".safetensors":
        save_file(state, path)
    elif path.suffix == ".npz":
        np.savez(path, **{key: tensor.numpy() for key, tensor in state.items()})
    else:
        torch.save(state, path, _use_new_zipfile_serialization=name != "legacy.pth")
    same_target(path, tiny_models)


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin", "sharded"])
def test_folders(tmp_path: Path, state: State, tiny_models: ModelSet, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": tiny_models.geometry.heads}))
    if kind == "model.safetensors":
        save_file(state, tmp_path / kind)
    elif kind == "pytorch_model.bin":
        torch.save(state, tmp_path / kind)
    else:
        names = sorted(state)
        shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
        for file, members in shards.items():
            save_file({name: state[name] for name in members}, tmp_path / file)
        places = {name: file for file, members in shards.items() for name in members}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    same_target(tmp_path, tiny_models)
    assert read_config(tmp_path)["num_attention_heads"] == tiny_models.geometry.heads


def test_class_conditional_sizes() -> None:
    geometry = Geometry(4, 64, 8, 1, 1, 2, 8, 16, 2, 8)
    config = TargetConfig(geometry, ClassConditioning(10), ffn=32)
    found = infer_target(Target(config).state_dict(), "the target", grid=4, image_size=8, code_dim=8, heads=2)
    assert found == config


def test_other_sizes(tiny_models: ModelSet) -> None:
    assert infer_vq(tiny_models.vq.state_dict(), "the image tokenizer") == tiny_models.vq.config
    drafter = infer_drafter(tiny_models.drafter.state_dict(), tiny_models.geometry, "the drafter")
    assert drafter == tiny_models.drafter.config
    assert published_heads(36, 1280, "the target") == 20
    with pytest.raises(CheckpointError, match="2 layers of 32, which is no published size"):
        published_heads(2, 32, "the target")


def test_half_precision_is_widened(tiny_models: ModelSet) -> None:
    half = {name: tensor.half() for name, tensor in tiny_models.vq.state_dict().items()}
    vq = type(tiny_models.vq)(tiny_models.vq.config)
    load_into(vq, half, "the image tokenizer")
    assert vq.quantize.embedding.weight.dtype == torch.float32


class Script:
    """What a checkpoint that runs code would hold."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return Path, ("/",)


def refused(path: Path, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        read_state(path)


def test_code_is_refused(tmp_path: Path) -> None:
    torch.save({"model": Script()}, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", "would have to run code to load; save its state dict alone")


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "pt"])
def test_truncated_files(tmp_path: Path, state: State, suffix: str) -> None:
    path = tmp_path / f"c.{suffix}"
    if suffix == "safetensors":
        save_file(state, path)
    elif suffix == "npz":
        np.savez(path, **{key: tensor.numpy() for key, tensor in state.items()})
    else:
        torch.save(state, path)
    for share in (0.0, 0.5, 0.99):
        broken = tmp_path / f"broken.{suffix}"
        broken.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
        refused(broken, "is damaged or truncated")


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    refused(tmp_path / "none.pt", "there is no checkpoint at")
    refused(tmp_path, "holds no checkpoint: it needs model.safetensors or pytorch_model.bin")
    (tmp_path / "a.txt").write_text("")
    refused(tmp_path / "a.txt", r"must end in one of \.safetensors")
    torch.save([1, 2], tmp_path / "list.pt")
    refused(tmp_path / "list.pt", "holds a list, but it must hold a state dict")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    refused(tmp_path / "empty.pt", "holds no tensors")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not valid JSON"):
        read_config(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    refused(tmp_path, "is damaged: it has no weight_map")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b.safetensors"}}')
    refused(tmp_path, "shards must lie beside it")


def test_keys_and_shapes_that_do_not_fit(tiny_models: ModelSet, state: State) -> None:
    def load(changed: State, sentence: str) -> None:
        with pytest.raises(CheckpointError, match=re.escape(sentence)):
            load_into(tiny_models.target, changed, "the target x.pt")

    load({k: v for k, v in state.items() if k != "lm_head.weight"}, "the target x.pt lacks lm_head.weight")
    few = {k: v for k, v in state.items() if "layers" not in k}
    load(few, "model.layers.0.input_layernorm.weight, ")
    load(few, " more")
    load(state | {"extra": torch.zeros(1)}, "has extra, which the model does not know")
    load(
        state | {"lm_head.weight": torch.zeros(3, 4)},
        "the target x.pt: lm_head.weight is [3, 4], but the model's is [96, 32]",
    )
    with pytest.raises(CheckpointError, match=r"lacks model\.embed_tokens\.weight, so its sizes"):
        infer_target({}, "the target", grid=6, image_size=12, code_dim=8)
