"""ImageDecoder: the bundle's image decoder on a device, one picture at a time, over memory of its own."""

from contextlib import ExitStack
from threading import Lock

import numpy as np

from vvs.arrays import Float32Array, IntArray
from vvs.manifest import DECODE_IMAGE, Manifest
from vvs.runtime.device.arena import Arena, ArenaPlan
from vvs.runtime.device.calls import Enqueue
from vvs.runtime.device.interface import Device, EngineSet

ADVICE = "free some, for instance by closing other pipelines"


class ImageDecoder:
    """Decodes token grids. Threads take turns."""

    def __init__(self, device: Device, engines: EngineSet, manifest: Manifest) -> None:
        spec = manifest.graphs[DECODE_IMAGE]
        plan = ArenaPlan()
        for tensor in (*spec.inputs, *spec.outputs):
            shape = tuple(1 if size == "R" else int(size) for size in tensor.shape)
            plan.add("image decoder", tensor.name, shape, tensor.dtype)
        scratch = engines.scratch_bytes((DECODE_IMAGE,))
        if scratch:
            plan.add("image decoder", "scratch", (scratch,), "uint8")
        self._device = device
        self._turn = Lock()
        with ExitStack() as opened:
            self._arena = Arena(device, plan, ADVICE)
            opened.callback(self._arena.close)
            self._stream = device.stream()
            inputs, outputs = (
                {tensor.name: self._arena[tensor.name] for tensor in side}
                for side in (spec.inputs, spec.outputs)
            )
            scratch_memory = self._arena.arrays.get("scratch")
            self._call = Enqueue(engines.execution(DECODE_IMAGE, inputs, outputs, scratch_memory))
            opened.pop_all()

    def decode(self, tokens: IntArray) -> Float32Array:
        """Turn token grids ``[R, grid * grid]`` into images ``[R, 3, H, W]`` in [-1, 1]."""
        images = []
        with self._turn:
            self._device.use()
            for grid in tokens:
                self._device.upload(self._stream, self._arena["tokens"], grid[None])
                self._device.issue(self._stream, self._call)
                images.append(self._device.download(self._stream, self._arena["image"])[0])
        return np.stack(images).astype(np.float32, copy=False)

    def close(self) -> None:
        """Give the memory back."""
        self._arena.close()
