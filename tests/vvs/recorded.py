"""Recordings of the published implementation: trees and settings as the tests need them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vvs.acceptance import AcceptanceRule, Exact, Lantern, LanternPlusPlus
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.sampling import Sampling
from vvs.skipping import Dynamic, Never, SkipPolicy, Uniform
from vvs.tree import DraftTree

DATA = Path(__file__).resolve().parents[1] / "data"
"""A small part of the recordings, which everyone has."""

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden"
"""All recordings, beside the repository, where they are to be had."""

NEVER_SKIP = 1024
"""The interval with which the recorded settings say never."""


def data(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{name}.npz") as arrays:
        return dict(arrays)


def golden(name: str) -> dict[str, np.ndarray]:
    path = GOLDEN / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"the full recordings are not here: no {name}.npz in ../shared/golden")
    with np.load(path) as arrays:
        return dict(arrays)


def codebook() -> Codebook:
    return Codebook.from_latents(data("codebook")["latents"], 65)


def tree_from_paths(tokens: np.ndarray, paths: np.ndarray) -> DraftTree:
    """The tree that has these paths; ``tokens [N]``."""
    N = len(tokens)
    parents, depth = np.full(N, -1), np.zeros(N, np.int64)
    ancestors = np.eye(N, dtype=bool)
    for path in paths:
        nodes = path[path >= 0]
        parents[nodes[1:]], depth[nodes] = nodes[:-1], np.arange(nodes.size)
        for i, node in enumerate(nodes):
            ancestors[node, nodes[: i + 1]] = True
    return DraftTree(tokens.astype(np.int64), parents, depth, ancestors, np.zeros(N, np.float32))


def tree_from_mask(tokens: np.ndarray, depth: np.ndarray, mask: np.ndarray) -> DraftTree:
    """The tree of one recorded step: ``mask [N, bytes]`` is its bit-packed ancestors."""
    N = len(tokens)
    ancestors = np.unpackbits(mask, axis=-1)[:, :N].astype(bool)
    parent = ancestors & (depth[None, :] == depth[:, None] - 1)
    parents = np.where(parent.any(axis=1), parent.argmax(axis=1), -1)
    return DraftTree(
        tokens.astype(np.int64), parents, depth.astype(np.int64), ancestors, np.zeros(N, np.float32)
    )


def rule_of(mode: str, k: int, bound: float) -> AcceptanceRule:
    rules: dict[str, AcceptanceRule] = {"exact": Exact()}
    if bound <= 1:
        rules["lantern"] = Lantern(k, bound)
    else:
        rules["lantern_pp"] = LanternPlusPlus(k, bound)
    return rules[mode]


def config_of(settings: dict[str, Any]) -> GenerationConfig:
    """The configuration that a trace was recorded with."""
    bound = settings["lantern_delta"]
    mode = "exact" if not settings["lantern"] else "lantern" if bound <= 1 else "lantern_pp"
    skipping: SkipPolicy = Never()
    if settings["policy"] == "dynamic":
        skipping = Dynamic(settings["threshold"])
    elif settings["interval"] != NEVER_SKIP:
        skipping = Uniform(settings["interval"])
    return GenerationConfig(
        Sampling(settings["temperature"], settings["top_k"], settings["top_p"]),
        settings["cfg"],
        "published",
        rule_of(mode, settings["lantern_k"], bound),
        skipping,
    )


def settings_of(arrays: dict[str, np.ndarray], prefix: str = "") -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(str(arrays[prefix + "settings"]))
    return settings
