"""OnnxRuntimeSession: the KV caches of one run, and the target and drafter calls over them.

The caches never move and are bound to the graphs once, so a call copies only its few new rows. Every shape
of call (requests, rows) is bound when it first occurs and reused, also by the next run: a closed session goes
back to its engine, which may open it again.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from vvs.arrays import FeatureArray, Float32Array, IntArray
from vvs.engine import Conditioning, DraftResult, DraftRows, TargetResult, TargetRows
from vvs.errors import BackendError, SettingsError
from vvs.manifest import (
    DRAFT_TREE,
    ENCODE_PROMPT,
    TARGET,
    Manifest,
    draft_tree_graph,
    drafter_caches,
    target_caches,
)
from vvs.runtime.kv_cache import KVCache
from vvs.runtime.onnxruntime_graph import Call, Graph, Pool, wrapped

Shapes = dict[str, tuple[int, ...]]
Result = TypeVar("Result")


class _Contract(NamedTuple):
    """Shapes of one call of a graph, its caches left out."""

    per_sequence: Shapes  # inputs [g n, ...], without the first axis
    per_request: Shapes  # inputs [n, ...], without the first axis
    outputs: Shapes


class _Bound(NamedTuple):
    """A call that is ready to be filled and run."""

    call: Call
    slots: Mapping[str, NDArray[Any]]  # its inputs as [g, n, ...] or [n, ...]
    new: FeatureArray  # [2 L, g n, H, T, Dh] its new KV rows

    def fill(self, **inputs: NDArray[Any]) -> None:
        """Copy inputs in; what is per request ``[n, ...]`` is repeated for the guidance rows."""
        for name, value in inputs.items():
            self.slots[name][...] = value


class OnnxRuntimeSession:
    """Answers :class:`vvs.engine.Session`. Belongs to one run; not to be shared between threads.

    Args:
        manifest: of the bundle, with the draft trees that may be asked for.
        requests: R.
        graph: returns an opened graph of the bundle by its name.
        embeddings: image token embeddings ``[V, D]``.
        give_back: takes the session when it is closed.

    """

    def __init__(
        self,
        manifest: Manifest,
        requests: int,
        graph: Callable[[str], Graph],
        embeddings: NDArray[Any],
        give_back: Callable[["OnnxRuntimeSession"], None],
    ) -> None:
        self.requests = requests
        self._geometry = geometry = manifest.geometry
        self._trees = manifest.trees
        self._give_back = give_back
        self._closed = False
        self._graph = graph
        self._embeddings = embeddings
        dtype = str(embeddings.dtype)
        self._caches = {
            TARGET: KVCache(geometry, geometry.layers, requests, dtype),
            DRAFT_TREE: KVCache(geometry, manifest.drafter_layers, requests, dtype),
        }
        self._kinds = {
            TARGET: target_caches(geometry.layers),
            DRAFT_TREE: drafter_caches(manifest.drafter_layers),
        }
        self._prompt_mask = np.zeros((geometry.guidance_rows, requests, geometry.prompt_length), np.bool_)
        self._pool = Pool()
        self._bound: dict[tuple[str, int, int, bool], _Bound] = {}
        self._past: dict[tuple[str, int, bool], dict[str, ort.OrtValue]] = {}
        self._new: FeatureArray | None = None  # new KV rows of the last target call
        self._seconds = 0.0

    @property
    def engine_seconds(self) -> float:
        """Seconds spent inside graph executions so far."""
        return self._seconds

    def prefill(self, conditioning: Conditioning, cfg_scale: Float32Array) -> TargetResult:
        """Encode the prompts, run the P prompt rows of all requests and commit them."""
        embeds, mask = self._encode_prompt(conditioning)
        _, R, P = self._prompt_mask.shape
        rows = np.arange(R)
        self._prompt_mask[...] = mask.reshape(self._prompt_mask.shape)
        valid = self._prompt_mask
        ancestors = np.tri(P, dtype=np.bool_) & (valid[:, :, None, :] | ~valid[:, :, :, None])
        nothing = np.zeros(R, np.int64)
        result = self._run_target(
            rows,
            P,
            embeds=embeds.reshape(*valid.shape, -1),
            positions=np.arange(P),
            ancestors=ancestors,
            past_length=nothing,
            cfg_scale=cfg_scale,
        )
        self.commit(rows, [np.arange(P)] * R, nothing)
        return result

    def verify(self, rows: IntArray, inputs: TargetRows) -> TargetResult:
        """Run the target on T new rows of the n requests in ``rows``; commits nothing."""
        self._gather(TARGET, rows, inputs.past_length)
        return self._run_target(
            rows,
            inputs.tokens.shape[1],
            embeds=self._embeddings[inputs.tokens],
            positions=inputs.positions,
            ancestors=inputs.ancestors,
            past_length=inputs.past_length,
            cfg_scale=inputs.cfg_scale,
        )

    def commit(self, rows: IntArray, kept: Sequence[IntArray], past_length: IntArray) -> None:
        """Write new KV rows of the last ``verify`` into the target's cache."""
        if self._new is None:
            raise BackendError("commit needs a target call before it: there are no new rows to keep")
        self._caches[TARGET].append(rows, self._new, kept, past_length)

    def draft(self, rows: IntArray, inputs: DraftRows, tree: str) -> DraftResult:
        """Consume ``count`` drafter rows per request (their KV is kept) and draft the tree named ``tree``."""
        if tree not in self._trees:
            raise SettingsError(f"unknown draft tree {tree!r}; this bundle has {', '.join(self._trees)}")
        self._gather(DRAFT_TREE, rows, inputs.past_length)
        n, A = inputs.tokens.shape
        bound = self._draft_call(rows, A, tree)
        bound.fill(
            features=inputs.features.reshape(-1, n, A, self._geometry.hidden),
            tokens=inputs.tokens,
            root=inputs.tokens[np.arange(n), inputs.count - 1],
            positions=inputs.positions,
            count=inputs.count,
            past_length=inputs.past_length,
            cfg_scale=inputs.cfg_scale,
            temperature=inputs.temperature,
            top_p=inputs.top_p,
            **({} if inputs.noise is None else {"noise": inputs.noise}),
        )
        self._time(bound.call.run)
        self._caches[DRAFT_TREE].append_leading(rows, bound.new, inputs.count, inputs.past_length)
        outputs = bound.call.outputs
        # Copies: the next call overwrites the outputs.
        return DraftResult(
            tokens=outputs["tree_tokens"].copy(),
            parents=outputs["parents"].copy(),
            depth=outputs["depth"].copy(),
            ancestors=outputs["ancestors"].copy(),
            scores=outputs["scores"].copy(),
        )

    def reopen(self) -> "OnnxRuntimeSession":
        """Start another run on the memory of the last one."""
        for cache in self._caches.values():
            cache.empty()
        self._new = None
        self._seconds = 0.0
        self._closed = False
        return self

    def close(self) -> None:
        """Give the session back to its engine; the first call counts."""
        if not self._closed:
            self._closed = True
            self._give_back(self)

    def _gather(self, cache: str, rows: IntArray, past_length: IntArray) -> None:
        if not self._caches[cache].is_whole(rows):
            self._caches[cache].gather(rows, past_length)

    def _encode_prompt(self, conditioning: Conditioning) -> tuple[NDArray[Any], NDArray[Any]]:
        graph = self._graph(ENCODE_PROMPT)
        encoded = self._time(lambda: graph.run(conditioning))
        embeds, mask = encoded["prompt_embeds"], encoded["prompt_mask"]
        g, R, P = self._prompt_mask.shape
        if embeds.shape != (g * R, P, self._geometry.hidden) or mask.shape != (g * R, P):
            raise BackendError(
                f"the prompt encoder returned embeddings {embeds.shape} and a mask {mask.shape}, "
                f"but {R} requests need {(g * R, P, self._geometry.hidden)} and {(g * R, P)}"
            )
        return embeds, mask

    def _run_target(self, rows: IntArray, T: int, **inputs: NDArray[Any]) -> TargetResult:
        bound = self._target_call(rows, T)
        whole = self._caches[TARGET].is_whole(rows)
        bound.fill(prompt_mask=self._prompt_mask if whole else self._prompt_mask[:, rows], **inputs)
        self._time(bound.call.run)
        self._new = bound.new
        # Copies: the next call overwrites the outputs.
        return TargetResult(bound.call.outputs["logits"].copy(), bound.call.outputs["features"].copy())

    def _target_call(self, rows: IntArray, T: int) -> _Bound:
        def contract(n: int) -> _Contract:
            geometry = self._geometry
            g, D, P, V = (
                geometry.guidance_rows,
                geometry.hidden,
                geometry.prompt_length,
                geometry.vocabulary,
            )
            return _Contract(
                per_sequence={
                    "embeds": (T, D),
                    "positions": (T,),
                    "ancestors": (T, T),
                    "past_length": (),
                    "prompt_mask": (P,),
                },
                per_request={"cfg_scale": ()},
                outputs={"logits": (n, T, V), "features": (g * n, T, D)},
            )

        return self._bind(TARGET, TARGET, rows, T, contract)

    def _draft_call(self, rows: IntArray, A: int, tree: str) -> _Bound:
        def contract(n: int) -> _Contract:
            shape = self._trees[tree]
            N = shape.nodes
            noise: Shapes = {"noise": (shape.levels, self._geometry.vocabulary)} if shape.coupled else {}
            return _Contract(
                per_sequence={
                    "features": (A, self._geometry.hidden),
                    "tokens": (A,),
                    "positions": (A,),
                    "count": (),
                    "past_length": (),
                },
                per_request={"root": (), "cfg_scale": (), "temperature": (), "top_p": (), **noise},
                outputs={
                    "tree_tokens": (n, N),
                    "parents": (n, N),
                    "depth": (n, N),
                    "ancestors": (n, N, N),
                    "scores": (n, N),
                },
            )

        return self._bind(draft_tree_graph(tree), DRAFT_TREE, rows, A, contract)

    def _bind(
        self,
        name: str,
        cache: str,
        rows: IntArray,
        T: int,
        contract: Callable[[int], _Contract],
    ) -> _Bound:
        """Bind a graph to memory for n requests of T new rows, or return what is bound already."""
        n, whole = rows.size, self._caches[cache].is_whole(rows)
        key = (name, n, T, whole)
        if key not in self._bound:
            kinds = self._kinds[cache]
            past = self._past_of(cache, n, whole, kinds)
            self._bound[key] = self._new_binding(self._graph(name), n, T, past, kinds, contract(n))
        return self._bound[key]

    def _past_of(self, cache: str, n: int, whole: bool, kinds: Sequence[str]) -> Mapping[str, ort.OrtValue]:
        """The caches of n requests as graph inputs; the same ones for every graph and T."""
        key = (cache, n, whole)
        if key not in self._past:
            rows = self._caches[cache].whole() if whole else self._caches[cache].gathered(n)
            self._past[key] = wrapped({f"past_{kind}": row for kind, row in zip(kinds, rows, strict=True)})
        return self._past[key]

    def _new_binding(
        self,
        graph: Graph,
        n: int,
        T: int,
        past: Mapping[str, ort.OrtValue],
        kinds: Sequence[str],
        contract: _Contract,
    ) -> _Bound:
        geometry = self._geometry
        g = geometry.guidance_rows

        def memory(tensor: str, shape: tuple[int, ...]) -> NDArray[Any]:
            return self._pool.view(f"{graph.name} {tensor}", shape, graph.dtypes[tensor])

        inputs = {tensor: memory(tensor, (g * n, *shape)) for tensor, shape in contract.per_sequence.items()}
        slots = {tensor: array.reshape(g, n, *array.shape[1:]) for tensor, array in inputs.items()}
        per_request = {tensor: memory(tensor, (n, *shape)) for tensor, shape in contract.per_request.items()}
        outputs = {tensor: memory(tensor, shape) for tensor, shape in contract.outputs.items()}
        shape = (len(kinds), g * n, geometry.heads, T, geometry.head_dim)
        new = self._pool.view(f"{graph.name} new", shape, str(self._embeddings.dtype))
        news = {f"new_{kind}": array for kind, array in zip(kinds, new, strict=True)}
        call = Call(graph, inputs | per_request, outputs | news, past)
        return _Bound(call, slots | per_request, new)

    def _time(self, run: Callable[[], Result]) -> Result:
        start = perf_counter()
        try:
            return run()
        finally:
            self._seconds += perf_counter() - start
