"""The state of a run in numpy arrays, and launching kernels on it by the names of their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.runtime.device.calls import Kernel
from vvs.runtime.kernels.host import HostKernels
from vvs.runtime.kernels.host_threads import ThreadedLaunch
from vvs.runtime.kernels.state import Counter, Decision, Phase, StateSizes, encode_settings, state_arrays
from vvs.tree import DraftTree

HOST = HostKernels()


class DeviceState:
    """Arrays of R requests. Launches run one thread per block, or are only recorded for real threads."""

    def __init__(
        self,
        configs: Sequence[GenerationConfig],
        codebook: Codebook,
        *,
        nodes: int,
        longest_path: int,
        image_tokens: int = 64,
        trees: Sequence[str] = ("tree",),
        guidance: int = 1,
        feature_bytes: int = 4,
        prompt: int = 3,
        skips_in_a_row: int = 1,
    ) -> None:
        self.sizes = StateSizes(
            requests=len(configs),
            vocabulary=codebook.vocabulary,
            image_tokens=image_tokens,
            guidance=guidance,
            nodes=nodes,
            longest_path=longest_path,
            feature_bytes=feature_bytes,
            skips_in_a_row=skips_in_a_row,
        )
        self.arrays = {
            name: np.zeros(spec.shape, spec.dtype) for name, spec in state_arrays(self.sizes).items()
        }
        self["choices"][...], self["reals"][...] = encode_settings(configs, trees)
        self.arrays["directions"] = codebook.directions
        self.arrays["nearest"] = np.ascontiguousarray(codebook.nearest, np.int32)
        self.scalars = {
            "requests": len(configs),
            "vocabulary": codebook.vocabulary,
            "image_tokens": image_tokens,
            "guidance": guidance,
            "nodes": nodes,
            "longest_path": longest_path,
            "feature_bytes": feature_bytes,
            "prompt": prompt,
            "code_dim": codebook.latents.shape[1],
            "neighbours": codebook.neighbours,
            "known_capacity": self.sizes.known_capacity,
            "kept_capacity": self.sizes.kept_capacity,
            "uniform_capacity": self.sizes.uniform_capacity,
            "window": self.sizes.window,
        }
        self.recorded: list[ThreadedLaunch] | None = None
        self.threads = 1

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def counter(self, request: int, column: Counter) -> int:
        return int(self["counters"][request, column])

    def set_counters(self, request: int, **values: int) -> None:
        for name, value in values.items():
            self["counters"][request, Counter[name.upper()]] = value

    def give_uniforms(self, request: int, values: Sequence[float]) -> None:
        self["uniforms"][request, : len(values)] = values

    def give_tree(self, request: int, tree: DraftTree) -> None:
        """Put a tree into the state, as proposing does."""
        N = tree.nodes
        self["tree_tokens"][request, :N] = tree.tokens
        self["tree_parents"][request, :N] = tree.parents
        self["tree_depth"][request, :N] = tree.depth
        self["tree_scores"][request, :N] = tree.scores
        self["tree_ancestors"][request, :N, :N] = tree.ancestors
        self["paths"][request] = -1
        count, longest = tree.paths.shape
        self["paths"][request, :count, :longest] = tree.paths
        self.set_counters(request, nodes=N, paths=count, longest=longest)

    def stand(
        self,
        request: int,
        *,
        known: Sequence[int],
        steps: int = 1,
        chain: int = 0,
        phase: Phase = Phase.VERIFIED,
    ) -> None:
        """Put a request where a verified or skipped step has left it; the last known token is the root."""
        self["known"][request, : len(known)] = known
        emitted, prompt = len(known) - 1, self.scalars["prompt"]
        self.set_counters(
            request,
            phase=phase,
            steps=steps,
            emitted=emitted,
            chain=chain,
            target_rows=prompt + emitted - chain,
            drafter_rows=prompt + emitted,
            known=len(known),
            decision=Decision.VERIFY,
        )

    def launch(self, kernel: Kernel, y: int = 1, **given: Any) -> None:
        """Launch a kernel over all requests; what is not given comes from the state."""
        arguments = [
            given[parameter.name]
            if parameter.name in given
            else (self.arrays if parameter.pointer else self.scalars)[parameter.name]
            for parameter in kernel.parameters
        ]
        for parameter, argument in zip(kernel.parameters, arguments, strict=True):
            if parameter.pointer:
                assert argument.flags.c_contiguous
                assert parameter.dtype == "uint8" or argument.dtype == parameter.dtype, parameter.name
        grid = (self.sizes.requests, y)
        if self.recorded is not None:
            self.recorded.append(ThreadedLaunch(kernel, grid, self.threads, tuple(arguments)))
            return
        values = [
            argument.ctypes.data if isinstance(argument, np.ndarray) else argument for argument in arguments
        ]
        HOST.launch(kernel, grid, 1, 0, tuple(values))
