"""Recording: a folder of npz files in the format of the published implementation's recorded runs.

Files are recognised by the arrays they hold, never by name: a target (``lm_head.weight``), a drafter
(``fc.weight``), an image tokenizer (``quantize.embedding.weight``), a codebook (``latents``), a pass that
tells the number of heads (``kv``), and any number of traces (``uniforms`` with ``kind``).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from vvs.acceptance import AcceptanceRule, Exact, Lantern, LanternPlusPlus
from vvs.config import GenerationConfig
from vvs.engine import DraftResult
from vvs.errors import VvsError
from vvs.sampling import Sampling
from vvs.skipping import Dynamic, Never, SkipPolicy, Uniform
from vvs.tree_shape import TreeShape

Arrays = Mapping[str, NDArray[Any]]

# How the recorded settings spell "never skip": an interval longer than any image of theirs.
NEVER_INTERVAL = 1024


@dataclass(frozen=True, eq=False)
class Trace:
    """One recorded generation."""

    file: str
    arrays: Arrays
    settings: Mapping[str, Any]

    @property
    def nodes(self) -> int:
        """Nodes of every draft tree, the root counted."""
        return int(self.arrays["tree_tokens"].shape[1])

    def tree(self, step: int) -> DraftResult | None:
        """The draft tree of a step, for a batch of one; None past the end. Scores are not recorded: 0."""
        if step >= len(self.arrays["kind"]):
            return None
        tokens, depth = (
            self.arrays[f"tree_{name}"][step].astype(np.int64) for name in ("tokens", "positions")
        )
        ancestors = np.unpackbits(self.arrays["tree_mask"][step], axis=-1)[:, : self.nodes].astype(bool)
        parent = ancestors & (depth[None, :] == depth[:, None] - 1)
        parents = np.where(parent.any(axis=1), parent.argmax(axis=1), -1)
        scores = np.zeros((1, self.nodes), np.float32)
        return DraftResult(tokens[None], parents[None], depth[None], ancestors[None], scores)

    def config(self, tree: str) -> GenerationConfig:
        """The configuration it was recorded with, on the draft tree named ``tree``."""
        s = self.settings
        return GenerationConfig(
            Sampling(s["temperature"], s["top_k"], s["top_p"]), s["cfg"], tree, _rule(s), _policy(s)
        )


def _rule(settings: Mapping[str, Any]) -> AcceptanceRule:
    if not settings["lantern"]:
        return Exact()
    k, bound = settings["lantern_k"], settings["lantern_delta"]
    # One field holds both: a delta is a probability, a lambda is above 1.
    return Lantern(k, bound) if bound <= 1 else LanternPlusPlus(k, bound)


def _policy(settings: Mapping[str, Any]) -> SkipPolicy:
    if settings["policy"] == "dynamic":
        return Dynamic(settings["threshold"])
    return Never() if settings["interval"] >= NEVER_INTERVAL else Uniform(settings["interval"])


@dataclass(frozen=True, eq=False)
class Recording:
    """Everything a folder holds."""

    target: Arrays
    drafter: Arrays
    vq: Arrays | None
    """None: no image tokenizer was recorded; tokens do not depend on it."""
    codebook: NDArray[np.float32]  # [V, C]
    heads: int
    traces: tuple[Trace, ...]

    @classmethod
    def read(cls, folder: Path) -> "Recording":
        """Read a folder.

        Raises:
            VvsError: the folder or one of its parts is missing, or a file is damaged.
        """
        files = sorted(folder.glob("*.npz"))
        if not files:
            raise VvsError(f"{folder} holds no .npz file; give the folder of a recording")
        loaded = {file.name: _load(file) for file in files}

        def seek(key: str) -> Arrays | None:
            return next((arrays for arrays in loaded.values() if key in arrays), None)

        def find(key: str, what: str) -> Arrays:
            found = seek(key)
            if found is None:
                raise VvsError(f"{folder} holds no {what}: no file has an array {key!r}")
            return found

        traces = tuple(
            Trace(name, arrays, json.loads(str(arrays["settings"])))
            for name, arrays in loaded.items()
            if {"uniforms", "kind", "tokens", "settings"} <= set(arrays)
        )
        if not traces:
            raise VvsError(f"{folder} holds no trace: no file has the arrays 'uniforms' and 'kind'")
        return cls(
            target=find("lm_head.weight", "target"),
            drafter=find("fc.weight", "drafter"),
            vq=seek("quantize.embedding.weight"),
            codebook=find("latents", "codebook")["latents"].astype(np.float32),
            heads=int(find("kv", "recorded target pass")["kv"].shape[2]),
            traces=traces,
        )

    @property
    def grid(self) -> int:
        """Tokens along one side of the traces' images."""
        return math.isqrt(len(self.traces[0].arrays["tokens"]))

    def tree(self, k: int, depth: int) -> TreeShape:
        """The draft tree of the traces; its size is theirs."""
        return TreeShape(k, depth, self.traces[0].nodes - 1)


def _load(file: Path) -> Arrays:
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise VvsError(f"{file} is not a readable .npz file: {error}") from error
