"""The loop that the kernels are made for, in its plainest form, over an engine in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from device_state import DeviceState
from toy_engine import HIDDEN, ToyEngine, ToySession

from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.decoding import trees_of
from vvs.engine import DraftRows, TargetRows
from vvs.runtime.kernels.state import Choice, Counter, Decision, Phase
from vvs.runtime.kernels.table import (
    ACCEPT,
    BEGIN,
    COMMIT,
    DECIDE,
    DRAFT_INPUTS,
    NOISE,
    PROPOSE,
    PROPOSE_ROOT,
    SIMILARITY,
    SKIP,
    TARGET_INPUTS,
)
from vvs.skipping import skips_in_a_row

LAYERS, HEADS = 2, 3
ROW_BYTES = 4
"""A toy KV row is one float: which token it is of, which layer and head."""


class KernelLoop:
    """Runs requests on kernels, with a toy engine for the graphs, and toy KV rows that tell what they are."""

    def __init__(self, engine: ToyEngine, codebook: Codebook, configs: Sequence[GenerationConfig]) -> None:
        geometry, self.trees = engine.geometry, list(engine.trees)
        used = [engine.trees[name] for config in configs for name in trees_of(config)]
        self.session = engine.open(len(configs))
        self.R, self.g, self.P = len(configs), geometry.guidance_rows, geometry.prompt_length
        self.state = DeviceState(
            configs,
            codebook,
            nodes=max((tree.nodes for tree in used), default=1),
            longest_path=max((tree.longest_path for tree in used), default=1),
            image_tokens=geometry.image_tokens,
            trees=self.trees,
            guidance=self.g,
            feature_bytes=4 * HIDDEN,
            prompt=self.P,
            skips_in_a_row=max(skips_in_a_row(config.skipping, geometry.image_tokens) for config in configs),
        )
        self.configs = configs
        self.capacity = geometry.capacity
        self.cache = np.zeros((LAYERS, self.g, self.R, HEADS, self.capacity), np.float32)
        self.embeddings = np.arange(geometry.vocabulary, dtype=np.int32)

    def run(self, prompts: np.ndarray) -> None:
        """Decode to the end."""
        self._prefill(prompts)
        while (self.state["counters"][:, Counter.PHASE] != Phase.COMPLETE).any():
            self._step()
            assert not self.state["counters"][:, Counter.FAULT].any()

    def _prefill(self, prompts: np.ndarray) -> None:
        scales = np.array([config.cfg_scale for config in self.configs], np.float32)
        logits, self.features = self.session.prefill({"prompt": prompts}, scales)
        self.state.launch(BEGIN, logits=logits, rows=self.P)
        self._commit(self._kv(np.broadcast_to(-1 - np.arange(self.P), (self.R, self.P))), self.P)

    def _step(self) -> None:
        state = self.state
        for number, name in enumerate(self.trees):
            if (state["choices"][:, [Choice.TREE, Choice.SKIP_TREE]] == number).any():
                self._draft(number, name)
        state.launch(PROPOSE_ROOT)
        state.launch(SIMILARITY)
        state.launch(DECIDE)
        decisions = state["counters"][:, Counter.DECISION].copy()
        state.launch(SKIP)
        verifying = np.flatnonzero(decisions == Decision.VERIFY)
        if verifying.size:
            self._verify(verifying)

    def _draft(self, number: int, name: str) -> None:
        state, R, g = self.state, self.R, self.g
        first = bool((state["counters"][:, Counter.PHASE] == Phase.PREFILLED).any())
        A = self.P if first else state.sizes.draft_capacity
        features = self.features if first else np.full((g * R, A, HIDDEN), np.nan, np.float32)
        inputs = {name: np.full((g * R, A), -7, np.int64) for name in ("tokens", "positions")}
        inputs |= {name: np.full(g * R, -7, np.int64) for name in ("count", "past_length")}
        root = np.full(R, -7, np.int64)
        feature_bytes = 0 if first else 4 * HIDDEN
        state.launch(
            DRAFT_INPUTS,
            **inputs,
            features=features.view(np.uint8),
            root=root,
            rows=A,
            tree=number,
            feature_bytes=feature_bytes,
        )
        assert all((array.reshape(g, -1) == array.reshape(g, -1)[0]).all() for array in inputs.values())
        assert np.isfinite(features).all()
        of_one = {name: array[:R] for name, array in inputs.items()}
        drafting = np.flatnonzero(state["counters"][:, Counter.DRAFTED])
        if not drafting.size:
            return
        for i in range(R):
            assert root[i] == of_one["tokens"][i, of_one["count"][i] - 1] or i not in drafting
        shape = self.session.engine.trees[name]
        noise = np.full((R, shape.levels, state.sizes.vocabulary), np.nan, np.float32)
        state.launch(NOISE, y=2, noise=noise, levels=shape.levels)
        rows = DraftRows(
            features=features.reshape(g, R, A, HIDDEN)[:, drafting].reshape(-1, A, HIDDEN),
            **{name: array[drafting] for name, array in of_one.items()},
            cfg_scale=np.ones(drafting.size, np.float32),
            temperature=np.ones(drafting.size, np.float32),
            top_p=np.ones(drafting.size, np.float32),
            noise=noise[drafting] if shape.coupled else None,
        )
        result = self.session.draft(drafting, rows, name)
        outputs = {}
        for field, dtype in zip(result._fields, ("i8", "i8", "i8", "?", "f4"), strict=True):
            of_drafting = getattr(result, field)
            outputs[f"drafted_{field}"] = np.zeros((R, *of_drafting.shape[1:]), dtype)
            outputs[f"drafted_{field}"][drafting] = of_drafting
        state.launch(PROPOSE, **outputs, tree=number, drafted_nodes=result.tokens.shape[1])

    def _verify(self, verifying: np.ndarray) -> None:
        state, R, g = self.state, self.R, self.g
        chain = bool(state["counters"][verifying, Counter.CHAIN].any())
        T = state.sizes.nodes + (state.sizes.chain_capacity if chain else 0)
        inputs = {
            "embeds": np.full((g * R, T), -7, np.int32),
            "positions": np.full((g * R, T), -7, np.int64),
            "ancestors": np.full((g * R, T, T), True),
            "past_length": np.full(g * R, -7, np.int64),
        }
        state.launch(
            TARGET_INPUTS,
            y=3,
            **inputs | {"embeds": inputs["embeds"].view(np.uint8)},
            embeddings=self.embeddings.view(np.uint8),
            rows=T,
            embedding_bytes=4,
        )
        assert all((array.reshape(g, -1) == array.reshape(g, -1)[0]).all() for array in inputs.values())
        idle = np.setdiff1d(np.arange(R), verifying)
        assert (inputs["ancestors"][idle] == np.eye(T, dtype=bool)).all()
        assert (inputs["past_length"][idle] == 0).all()
        scales = np.array([config.cfg_scale for config in self.configs], np.float32)
        tokens = inputs["embeds"][:R].astype(np.int64)
        rows = TargetRows(
            tokens[verifying],
            inputs["positions"][verifying],
            inputs["ancestors"][verifying],
            inputs["past_length"][verifying],
            scales[verifying],
        )
        of_verifying, its_features = self.session.verify(verifying, rows)
        logits = np.full((R, T, of_verifying.shape[-1]), np.nan, np.float32)
        logits[verifying] = of_verifying
        features = np.full((g, R, T, HIDDEN), np.nan, np.float32)
        features[:, verifying] = its_features.reshape(g, -1, T, HIDDEN)
        past = state["counters"][:, Counter.TARGET_ROWS].astype(np.int64)
        state.launch(ACCEPT, logits=logits, rows=T)
        self._commit(self._kv(tokens), T, features)
        counts = state["counters"][verifying, Counter.KEPT]
        kept = [state["kept"][i, :count].astype(np.int64) for i, count in zip(verifying, counts, strict=True)]
        self.session.commit(verifying, kept, past[verifying])

    def _kv(self, tokens: np.ndarray) -> np.ndarray:
        """KV rows of tokens ``[R, T]``, as ``[layers, g, R, heads, T]``."""
        layer, g, head = (np.arange(n) for n in (LAYERS, self.g, HEADS))
        marks = 1000.0 * layer[:, None, None] + 100 * g[:, None] + 10 * head
        return np.ascontiguousarray(
            marks[:, :, None, :, None] * 1e3 + tokens[None, None, :, None, :], np.float32
        )

    def _commit(self, new: np.ndarray, T: int, features: np.ndarray | None = None) -> None:
        prefill = features is None
        self.state.launch(
            COMMIT,
            y=2,
            new_rows=new.view(np.uint8),
            cache=self.cache.view(np.uint8),
            features=np.zeros(4, np.uint8) if features is None else features.view(np.uint8),
            new_stride=new[0].nbytes,
            cache_stride=self.cache[0].nbytes,
            tensors=LAYERS,
            heads=HEADS,
            rows=T,
            capacity=self.capacity,
            row_bytes=ROW_BYTES,
            end_column=int(Counter.TARGET_ROWS),
            count_column=int(Counter.KEPT),
            **({"kept_capacity": 0, "feature_bytes": 0} if prefill else {}),
        )

    def images(self) -> np.ndarray:
        """Tokens of the finished images."""
        return self.state["known"][:, : self.state.sizes.image_tokens]

    def committed_tokens(self, request: int) -> list[int]:
        """Tokens of the committed rows, once it is checked that every layer and head holds the same ones."""
        rows = len(self.session.committed[request]) + self.P
        expected = self._kv(self.cache[0, 0, :, 0, :rows].astype(np.int64))[:, :, request]
        assert (self.cache[:, :, request, :, :rows] == expected).all()
        assert (self.cache[:, :, request, :, rows:] == 0).all()
        return self.cache[0, 0, request, 0, self.P : rows].astype(np.int64).tolist()


def sessions_agree(device: ToySession, reference: ToySession) -> bool:
    """Whether two runs committed and drafted the same."""
    return device.committed == reference.committed and device.drafted == reference.drafted
