"""RunInputs: what the host uploads before the steps of a run begin: constants, settings, prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import IntArray
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.engine import Conditioning
from vvs.errors import SettingsError
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.array import DeviceArray, host_dtype
from vvs.runtime.device.interface import Device, Stream
from vvs.runtime.device.run_plan import RunPlan
from vvs.runtime.kernels.state import encode_settings
from vvs.uniforms import Uniforms


class RunInputs:
    """Uploads to the memory of one session.

    Args:
        device: what holds the memory.
        stream: the session's.
        plan: names and shapes.
        arrays: the plan's memory.

    """

    def __init__(
        self, device: Device, stream: Stream, plan: RunPlan, arrays: Mapping[str, DeviceArray]
    ) -> None:
        self._device = device
        self._stream = stream
        self._plan = plan
        self._arrays = arrays

    def constants(self, bundle: Bundle, codebook: Codebook) -> None:
        """What is the same in every run."""
        embeddings = self._arrays["embeddings"]
        held = np.ascontiguousarray(bundle.token_embeddings)
        self._put("embeddings", held.view(host_dtype(embeddings)))
        self._put("directions", codebook.directions)
        if codebook.neighbours:
            self._put("nearest", codebook.nearest)

    def settings(self, configs: Sequence[GenerationConfig], streams: Sequence[Uniforms]) -> IntArray:
        """Settings and random numbers of a batch; returns how many numbers each stream gave ``[R]``."""
        choices, reals = encode_settings(configs, self._plan.shape.trees)
        capacity = self._plan.sizes.uniform_capacity
        taken = [stream.take(capacity) for stream in streams]
        uniforms = np.zeros((len(streams), capacity))
        for row, numbers in zip(uniforms, taken, strict=True):
            row[: numbers.size] = numbers
        self._put("choices", choices)
        self._put("reals", reals)
        self._put("uniforms", uniforms)
        inputs = {
            "cfg_scale": [config.cfg_scale for config in configs],
            "draft_cfg_scale": [config.draft_cfg_scale for config in configs],
            "temperature": [config.sampling.temperature for config in configs],
            "top_p": [config.sampling.top_p for config in configs],
        }
        for name, values in inputs.items():
            self._put(name, np.array(values, np.float32))
        return np.array([numbers.size for numbers in taken], np.int64)

    def prompts(self, conditioning: Conditioning) -> None:
        """Inputs of the prompt encoder."""
        for name, values in conditioning.items():
            target = self._arrays.get(f"prompt.{name}")
            if target is None or target.shape != values.shape:
                wanted = "is no input of this model" if target is None else f"must be {list(target.shape)}"
                raise SettingsError(f"conditioning {name!r} of shape {list(values.shape)} {wanted}")
            self._put(f"prompt.{name}", values)

    def prompt_rows(self) -> None:
        """Positions, ancestors and lengths of the target's pass over encoded prompts.

        A padded row attends to padded rows only, as :mod:`vvs.engine` has it.
        """
        mask = self._device.download(self._stream, self._arrays["prompt_mask"]).astype(np.bool_)
        B, P = mask.shape
        ancestors = np.tri(P, dtype=np.bool_) & (mask[:, None, :] | ~mask[:, :, None])
        self._put("positions", np.broadcast_to(np.arange(P), (B, P)))
        self._put("ancestors", ancestors)
        self._put("past_length", np.zeros(B, np.int64))

    def _put(self, name: str, values: NDArray[Any]) -> None:
        """Upload values to the front of an array."""
        self._device.upload(self._stream, self._arrays[name].leading(values.shape), values)
