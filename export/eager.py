"""The eager engine: plain PyTorch modules behind the Engine protocol.

The slow oracle that fast engines are compared with; runs on any torch device. Caches have the capacity and
the commit semantics of every other engine. Nothing here is traced.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vvs.arrays import Float32Array, IntArray
from vvs.engine import Conditioning, DraftResult, DraftRows, TargetResult, TargetRows
from vvs.errors import PromptError, SettingsError
from vvs.export.graphs import DecodeImageGraph, DraftTreeGraph, EncodePromptGraph, TargetGraph, as_array
from vvs.export.layers import dtype_of, prompt_visibility
from vvs.export.model_set import ModelSet
from vvs.geometry import Geometry
from vvs.tree_shape import TreeShape

_T = TypeVar("_T")


class EagerEngine:
    """Answers :class:`vvs.engine.Engine` with the modules of a model set, in their own precision.

    The modules are moved to ``device``, not copied.
    """

    def __init__(self, models: ModelSet, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        target = models.target.to(self.device).eval()
        drafter = models.drafter.to(self.device).eval()
        self.models = models
        encoder = models.text_encoder
        self.encode_prompt = EncodePromptGraph(target, encoder and encoder.to(self.device).eval())
        self.target = TargetGraph(target)
        self.drafts = {
            name: DraftTreeGraph(drafter, target, shape, name) for name, shape in models.trees.items()
        }
        self.decoder = DecodeImageGraph(models.vq.to(self.device).eval(), models.geometry)

    @property
    def geometry(self) -> Geometry:
        """Sizes of the models."""
        return self.models.geometry

    @property
    def trees(self) -> Mapping[str, TreeShape]:
        """Draft trees by name."""
        return self.models.trees

    def open(self, requests: int) -> "EagerSession":
        """Allocate caches for ``requests`` requests."""
        most = self.models.max_requests
        if not 1 <= requests <= most:
            raise SettingsError(f"a session holds 1 to {most} requests, but {requests} were asked for")
        return EagerSession(self, requests)

    @torch.inference_mode()
    def decode_image(self, tokens: IntArray) -> Float32Array:
        """Images ``[R, 3, H, W]`` in [-1, 1] of token grids ``[R, grid * grid]``."""
        (image,) = self.decoder(self.put(tokens))
        out: Float32Array = image.cpu().numpy()
        return out

    def put(self, array: NDArray[Any]) -> Tensor:
        """A numpy array on the engine's device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


class EagerSession:
    """KV caches of R requests. Engine rows: request r has the rows r and, with guidance, R + r."""

    def __init__(self, engine: EagerEngine, requests: int) -> None:
        geometry = engine.geometry
        self.engine = engine
        self.requests = requests
        self._seconds = 0.0
        rows = requests * geometry.guidance_rows
        shape = (rows, geometry.heads, geometry.capacity, geometry.head_dim)
        dtype = dtype_of(engine.models.target)

        def caches(count: int) -> list[Tensor]:
            return [torch.zeros(shape, dtype=dtype, device=engine.device) for _ in range(count)]

        self._cache = caches(2 * geometry.layers)  # keys and values in turn
        self._draft_cache = caches(2 * engine.models.drafter.config.layers)
        self._prompt_mask = torch.zeros(rows, geometry.prompt_length, dtype=torch.bool, device=engine.device)
        self._new: tuple[Tensor, ...] = ()  # rows of the last target pass, not committed yet

    @property
    def engine_seconds(self) -> float:
        """Seconds spent inside the modules so far."""
        return self._seconds

    @torch.inference_mode()
    def prefill(self, conditioning: Conditioning, cfg_scale: Float32Array) -> TargetResult:
        """Encode and run the prompts of all requests, and commit their rows."""
        engine, P = self.engine, self.engine.geometry.prompt_length
        inputs = self._conditioning(conditioning)
        embeds, self._prompt_mask = self._timed(lambda: engine.encode_prompt(*inputs))
        rows = len(embeds)
        positions = torch.arange(P, device=engine.device).expand(rows, P)
        nothing = torch.zeros(rows, dtype=torch.int64, device=engine.device)
        visible = prompt_visibility(self._prompt_mask)
        everyone = np.arange(self.requests)
        result = self._target(everyone, embeds, positions, visible, nothing, cfg_scale)
        self.commit(everyone, [np.arange(P)] * self.requests, np.zeros(self.requests, np.int64))
        return result

    @torch.inference_mode()
    def verify(self, rows: IntArray, inputs: TargetRows) -> TargetResult:
        """Run the target on new rows; commits nothing."""
        put = self.engine.put
        tokens, positions, visible, past_length = (
            self._both(put(a))
            for a in (inputs.tokens, inputs.positions, inputs.ancestors, inputs.past_length)
        )
        embeds = self.engine.target.target.model.embed_tokens(tokens)
        return self._target(rows, embeds, positions, visible, past_length, inputs.cfg_scale)

    @torch.inference_mode()
    def commit(self, rows: IntArray, kept: Sequence[IntArray], past_length: IntArray) -> None:
        """Write the surviving rows of the last target pass into the cache."""
        for g in range(self.engine.geometry.guidance_rows):
            for i, (row, chosen) in enumerate(zip(rows, kept, strict=True)):
                source = self.engine.put(chosen)
                start = int(past_length[i])
                for cache, new in zip(self._cache, self._new, strict=True):
                    cache[g * self.requests + int(row), :, start : start + len(chosen)] = new[
                        g * len(rows) + i
                    ].index_select(1, source)

    @torch.inference_mode()
    def draft(self, rows: IntArray, inputs: DraftRows, tree: str) -> DraftResult:
        """Consume drafter rows, keep their KV and draft a tree."""
        if tree not in self.engine.drafts:
            known = ", ".join(self.engine.drafts)
            raise SettingsError(f"the draft tree is {tree!r}, but this engine has: {known}")
        put, graph = self.engine.put, self.engine.drafts[tree]
        root = np.take_along_axis(inputs.tokens, inputs.count[:, None] - 1, axis=1)[:, 0]
        per_row = [
            self._both(put(a)) for a in (inputs.tokens, inputs.positions, inputs.count, inputs.past_length)
        ]
        tokens, positions, count, past_length = per_row
        heat = [put(a.astype(np.float32)) for a in (inputs.cfg_scale, inputs.temperature, inputs.top_p)]
        if inputs.noise is not None:
            heat.append(put(inputs.noise))
        features = put(inputs.features).to(self._draft_cache[0].dtype)
        which = self._engine_rows(rows)
        past = [cache[which] for cache in self._draft_cache]
        out = self._timed(
            lambda: graph(features, tokens, put(root), positions, count, past_length, *heat, *past)
        )
        drafted, rows_kept = out[: -len(past)], out[-len(past) :]
        for i, row in enumerate(which.tolist()):
            start, length = int(past_length[i]), int(count[i])
            for cache, new in zip(self._draft_cache, rows_kept, strict=True):
                cache[row, :, start : start + length] = new[i, :, :length]
        return DraftResult(*(part.cpu().numpy() for part in drafted))

    def close(self) -> None:
        """Drop the caches."""
        self._cache, self._draft_cache, self._new = [], [], ()

    def _conditioning(self, conditioning: Conditioning) -> list[Tensor]:
        wanted = [tensor.name for tensor in self.engine.encode_prompt.inputs]
        if sorted(conditioning) != sorted(wanted):
            raise PromptError(
                f"this model's prompts are {' and '.join(wanted)}, "
                f"but got {' and '.join(conditioning) or 'nothing'}"
            )
        for name in wanted:
            if len(conditioning[name]) != self.requests:
                raise PromptError(
                    f"{name} has {len(conditioning[name])} rows, "
                    f"but the session holds {self.requests} requests"
                )
        return [self.engine.put(conditioning[name]) for name in wanted]

    def _target(
        self,
        rows: IntArray,
        embeds: Tensor,
        positions: Tensor,
        visible: Tensor,
        past_length: Tensor,
        cfg_scale: Float32Array,
    ) -> TargetResult:
        which = self._engine_rows(rows)
        scale = self.engine.put(cfg_scale.astype(np.float32))
        past = [cache[which] for cache in self._cache]
        mask = self._prompt_mask[which]
        logits, features, *new = self._timed(
            lambda: self.engine.target(embeds, positions, visible, past_length, mask, scale, *past)
        )
        self._new = tuple(new)
        return TargetResult(logits.cpu().numpy(), as_array(features))

    def _engine_rows(self, rows: IntArray) -> Tensor:
        """Cache rows of the requests ``rows``: conditional ones first, then unconditional ones."""
        g = np.arange(self.engine.geometry.guidance_rows)
        return self.engine.put((g[:, None] * self.requests + np.asarray(rows)[None, :]).reshape(-1))

    def _both(self, values: Tensor) -> Tensor:
        return torch.cat([values] * self.engine.geometry.guidance_rows)

    def _timed(self, call: Callable[[], _T]) -> _T:
        started = time.perf_counter()
        out = call()
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)
        self._seconds += time.perf_counter() - started
        return out
