"""The recorded numbers, from the modules and from their ONNX graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from recordings import GOLDEN, PUBLISHED_TREE, load_golden

from vvs.export.compact import half_split_order
from vvs.export.graphs import DraftTreeGraph, TargetGraph, named
from vvs.export.parity import open_graph

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

P, S = 120, 376
TOLERANCE = 1e-5
TRACES = sorted(path.stem for path in GOLDEN.glob("trace_*.npz")) or ["trace_missing"]

Arrays = dict[str, Any]


class ByModule:
    """Runs graphs as plain modules."""

    def __init__(self, models: ModelSet) -> None:
        self.models = models
        self.key_order = np.arange(models.geometry.head_dim)

    def graph(self, name: str) -> Any:
        if name == "target":
            return TargetGraph(self.models.target)
        return DraftTreeGraph(
            self.models.drafter, self.models.target, self.models.trees[PUBLISHED_TREE], PUBLISHED_TREE
        )

    def run(self, name: str, feeds: Arrays) -> Arrays:
        graph = self.graph(name)
        with torch.no_grad():
            out = graph(*(torch.from_numpy(feeds[tensor.name]) for tensor in graph.inputs))
        return named(graph.outputs, out)


class ByOnnx:
    """Runs the same graphs of the bundle in ONNX Runtime."""

    def __init__(self, models: ModelSet, bundle: Path) -> None:
        self.bundle = bundle
        self.key_order = half_split_order(models.geometry.head_dim).numpy()

    def run(self, name: str, feeds: Arrays) -> Arrays:
        file = "target" if name == "target" else f"draft_tree.{PUBLISHED_TREE}"
        session = open_graph(self.bundle / f"{file}.onnx")
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.fixture(params=["module", "onnx"])
def runner(request: pytest.FixtureRequest, golden_models: ModelSet) -> ByModule | ByOnnx:
    if request.param == "module":
        return ByModule(golden_models)
    return ByOnnx(golden_models, request.getfixturevalue("golden_bundle"))


def prompt_ancestors(mask: np.ndarray) -> np.ndarray:
    allowed: np.ndarray = np.tri(P, dtype=bool) & (mask[:, None, :] | ~mask[:, :, None])
    return allowed


def caches(count: int) -> list[np.ndarray]:
    return [np.zeros((2, 4, S, 16), np.float32) for _ in range(count)]


def prefill(runner: ByModule | ByOnnx, embeds: np.ndarray, mask: np.ndarray, cfg: float) -> Arrays:
    past = {f"past_{x}_{i}": cache for i in range(2) for x, cache in zip("kv", caches(2), strict=True)}
    return runner.run(
        "target",
        {
            "embeds": embeds,
            "positions": np.tile(np.arange(P), (2, 1)),
            "ancestors": prompt_ancestors(mask),
            "past_length": np.zeros(2, np.int64),
            "prompt_mask": mask,
            "cfg_scale": np.array([cfg], np.float32),
            **past,
        },
    )


def test_target_forward(runner: ByModule | ByOnnx, golden_models: ModelSet) -> None:
    """Prefill of a padded prompt, then a tree over it: features, guided logits and every cached row."""
    z = load_golden("target_forward")
    embedding = golden_models.target.model.cls_embedding
    with torch.no_grad():
        states = torch.from_numpy(np.concatenate([z["caption"], z["uncond"]]).astype(np.float32))
        embeds = embedding.cap_proj(states).numpy()
    mask = np.repeat(z["prompt_mask"] > 0, 2, axis=0)
    first = prefill(runner, embeds, mask, float(z["cfg"]))
    np.testing.assert_allclose(first["features"], z["prefill_features"], atol=TOLERANCE)
    np.testing.assert_allclose(
        first["logits"][:, -1:].reshape(-1), z["prefill_logits"].reshape(-1), atol=3e-5
    )
    past = {f"past_{x}_{i}": cache for i in range(2) for x, cache in zip("kv", caches(2), strict=True)}
    for name, cache in past.items():
        cache[:, :, :P] = first[name.replace("past", "new")]
    parents = z["tree_parents"]
    N = len(parents)
    ancestors = np.eye(N, dtype=bool)
    for node in range(1, N):
        ancestors[node] |= ancestors[parents[node]]
    tokens = torch.from_numpy(z["tree_tokens"]).reshape(1, N).expand(2, -1)
    second = runner.run(
        "target",
        {
            "embeds": golden_models.target.model.embed_tokens(tokens).detach().numpy(),
            "positions": np.tile(z["tree_positions"].astype(np.int64), (2, 1)),
            "ancestors": np.tile(ancestors, (2, 1, 1)),
            "past_length": np.full(2, P),
            "prompt_mask": mask,
            "cfg_scale": np.array([z["cfg"]], np.float32),
            **past,
        },
    )
    np.testing.assert_allclose(second["features"], z["tree_features"], atol=TOLERANCE)
    np.testing.assert_allclose(second["logits"], z["tree_logits"].reshape(second["logits"].shape), atol=3e-5)
    for i in range(2):
        for j, x in enumerate("kv"):
            rows = np.concatenate([first[f"new_{x}_{i}"], second[f"new_{x}_{i}"]], axis=2)
            expected = z["kv"][2 * i + j]
            if x == "k":
                expected = expected[..., runner.key_order]
            np.testing.assert_allclose(rows, expected, atol=TOLERANCE)


@pytest.mark.parametrize("trace", TRACES)
def test_first_tree(runner: ByModule | ByOnnx, golden_models: ModelSet, trace: str) -> None:
    """The first drafted tree of every recorded generation, from its caption on."""
    z = load_golden(trace)
    settings = json.loads(str(z["settings"]))
    with torch.no_grad():
        prompt = golden_models.target.encode_prompt(
            torch.from_numpy(z["caption"].astype(np.float32)), torch.from_numpy(z["caption_mask"] > 0)
        )
    first = prefill(runner, prompt.embeds.numpy(), prompt.mask.numpy(), float(settings["cfg"]))
    np.testing.assert_allclose(first["features"], z["first_draft_features"], atol=TOLERANCE)
    tokens = np.zeros((2, P), np.int64)
    tokens[:, -1] = z["tree_tokens"][0, 0]
    one = np.ones(1, np.float32)
    drafted = runner.run(
        "draft",
        {
            "features": first["features"],
            "tokens": tokens,
            "root": tokens[:1, -1],
            "positions": np.tile(np.arange(1, P + 1), (2, 1)),
            "count": np.full(2, P),
            "past_length": np.zeros(2, np.int64),
            "cfg_scale": one * settings["cfg"],
            "temperature": one * settings["temperature"],
            "top_p": one * settings["top_p"],
            **dict(zip(("past_k", "past_v"), caches(2), strict=True)),
        },
    )
    nodes = golden_models.trees[PUBLISHED_TREE].nodes
    ancestors = np.unpackbits(z["tree_mask"][0], axis=1)[:, :nodes].astype(bool)
    if isinstance(runner, ByOnnx) and drafted["scores"].min() < -1e8:
        # Filled up with impossible nodes, whose order no two implementations share: compare the others.
        assert real_paths(drafted["tree_tokens"][0], drafted["ancestors"][0], drafted["scores"][0]) <= paths(
            z["tree_tokens"][0], ancestors
        )
        return
    np.testing.assert_array_equal(drafted["tree_tokens"][0], z["tree_tokens"][0])
    np.testing.assert_array_equal(drafted["depth"][0], z["tree_positions"][0])
    np.testing.assert_array_equal(drafted["ancestors"][0], ancestors)


def paths(tokens: np.ndarray, ancestors: np.ndarray) -> set[tuple[int, ...]]:
    """Every node as the tokens from the root to it."""
    return {tuple(tokens[row].tolist()) for row in ancestors}


def real_paths(tokens: np.ndarray, ancestors: np.ndarray, scores: np.ndarray) -> set[tuple[int, ...]]:
    return paths(tokens, ancestors[scores > -1e8])


def test_image_tokenizer_module(golden_models: ModelSet) -> None:
    z = load_golden("vq_cases")
    with torch.no_grad():
        image = golden_models.vq.decode(torch.from_numpy(z["ids"]).reshape(1, 8, 8))
        ids = golden_models.vq.encode(torch.from_numpy(z["encode_in"]))
    np.testing.assert_allclose(image.numpy(), z["image"], atol=TOLERANCE)
    np.testing.assert_array_equal(ids.flatten().numpy(), z["encode_ids"].reshape(-1))


def test_image_tokenizer_graph(golden_models: ModelSet, golden_bundle: Path) -> None:
    """The graph has a fixed grid of 16x16, so it is compared with the module that the recording pins."""
    ids = np.random.default_rng(0).integers(0, 512, (2, 256))
    (image,) = open_graph(golden_bundle / "decode_image.onnx").run(None, {"tokens": ids})
    with torch.no_grad():
        expected = golden_models.vq.decode(torch.from_numpy(ids).reshape(2, 16, 16)).clamp(-1, 1)
    np.testing.assert_allclose(image, expected.numpy(), atol=2e-5)
