"""RunPlan: all that a run of R requests keeps on a device: names, shapes and dtypes, from the manifest alone.

Engine buffers are laid out for their largest use; smaller uses are leading views of the same memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from vvs.config import GenerationConfig
from vvs.decoding import trees_of
from vvs.geometry import Geometry
from vvs.manifest import ENCODE_PROMPT, TARGET, Manifest, draft_tree_graph
from vvs.runtime.device.arena import ArenaPlan
from vvs.runtime.device.array import DeviceArray, array_bytes
from vvs.runtime.kernels.state import StateSizes, state_arrays
from vvs.skipping import skips_in_a_row
from vvs.tree_shape import TreeShape

# State that a step carries over to the next and that two runs of it must agree on to the bit, then what else
# it carries over; the rest of the state is constant within a run.
COMPARED = ("counters", "known", "taken", "kept", "tree_tokens", "tree_parents", "tree_depth", "paths")
CARRIED = (*COMPARED, "tree_ancestors", "tree_scores", "similarity", "probabilities", "feature_cache")
STATE, CACHES, ENGINES, CONSTANTS = "loop state", "KV caches", "engine inputs and outputs", "constants"


@dataclass(frozen=True)
class RunShape:
    """What fixes every shape of a run."""

    requests: int
    """R."""
    trees: tuple[str, ...]
    """Draft trees in use; a request without one decodes plainly."""
    verified: tuple[str, ...]
    """Those of them that the target sees: others are drafted only where a step is planned to be skipped."""
    skips_in_a_row: int = 1
    """Most steps that a request skips one after the other: all their tokens are one chain."""

    @classmethod
    def of(cls, manifest: Manifest, configs: Sequence[GenerationConfig]) -> "RunShape":
        """The shape of a batch."""
        drafted = {name for config in configs for name in trees_of(config)}
        verified = {config.tree for config in configs}
        return cls(
            len(configs),
            tuple(name for name in manifest.trees if name in drafted),
            tuple(name for name in manifest.trees if name in verified),
            max(skips_in_a_row(config.skipping, manifest.geometry.image_tokens) for config in configs),
        )


@dataclass(frozen=True)
class RunPlan:
    """The memory of a run.

    Raises:
        SettingsError: a tree that is too large for the kernels.

    """

    manifest: Manifest
    shape: RunShape
    neighbours: int
    """K, nearest codes per token that the codebook lists."""

    @property
    def geometry(self) -> Geometry:
        """Sizes of the models."""
        return self.manifest.geometry

    @property
    def rows(self) -> int:
        """B = g R, engine rows."""
        return self.geometry.guidance_rows * self.shape.requests

    @cached_property
    def trees(self) -> Mapping[str, TreeShape]:
        """Trees in use, by name."""
        return {name: self.manifest.trees[name] for name in self.shape.trees}

    @cached_property
    def sizes(self) -> StateSizes:
        """Sizes of the state that kernels share."""
        geometry = self.geometry
        return StateSizes(
            requests=self.shape.requests,
            vocabulary=geometry.vocabulary,
            image_tokens=geometry.image_tokens,
            guidance=geometry.guidance_rows,
            nodes=max((tree.nodes for tree in self.trees.values()), default=1),
            longest_path=max((tree.longest_path for tree in self.trees.values()), default=1),
            feature_bytes=array_bytes((geometry.hidden,), self.dtype(TARGET, "features")),
            skips_in_a_row=self.shape.skips_in_a_row,
        )

    def dtype(self, graph: str, tensor: str) -> str:
        """Dtype of a graph's input or output."""
        spec = self.manifest.graphs[graph]
        return next(each.dtype for each in (*spec.inputs, *spec.outputs) if each.name == tensor)

    def verify_rows(self, *, chain: bool) -> int:
        """T of a verify: the tree, behind a padded chain if any request has one; 1 without a tree."""
        nodes = max((self.trees[name].nodes for name in self.shape.verified), default=1)
        return nodes + (self.sizes.chain_capacity if chain else 0)

    @cached_property
    def target_rows(self) -> int:
        """T of the widest target pass."""
        return max(self.geometry.prompt_length, self.verify_rows(chain=True))

    @cached_property
    def draft_rows(self) -> int:
        """A of the widest drafting call."""
        return max(self.geometry.prompt_length, self.sizes.draft_capacity)

    def lay_out(self, scratch: int, *, backup: bool) -> ArenaPlan:
        """Lay out the memory, the state that steps carry over first and in one piece.

        Args:
            scratch: bytes that the engines need while they run.
            backup: also memory to keep that state in while a step is captured.

        """
        plan = ArenaPlan()
        state = state_arrays(self.sizes)
        for name in (*CARRIED, *(name for name in state if name not in CARRIED)):
            plan.add(STATE, name, *state[name])
        if backup:
            carried = plan.entries[CARRIED[-1]]
            end = carried.offset + array_bytes(carried.shape, carried.dtype)
            plan.add(STATE, "backup", (end,), "uint8")
        self._add_constants(plan)
        self._add_target(plan)
        if self.trees:
            self._add_drafter(plan)
        if scratch:
            plan.add("engine scratch", "scratch", (scratch,), "uint8")
        return plan

    def _add_constants(self, plan: ArenaPlan) -> None:
        geometry, R = self.geometry, self.shape.requests
        V = geometry.vocabulary
        embeddings = self.dtype(TARGET, "embeds")
        plan.add(CONSTANTS, "embeddings", (V, geometry.hidden), embeddings)
        plan.add(CONSTANTS, "directions", (V, geometry.code_dim), "float64")
        plan.add(CONSTANTS, "nearest", (V, max(1, self.neighbours)), "int32")
        for name in ("cfg_scale", "draft_cfg_scale", "temperature", "top_p"):
            plan.add(CONSTANTS, name, (R,), "float32")
        for tensor in self.manifest.graphs[ENCODE_PROMPT].inputs:
            shape = tuple(R if size == "R" else int(size) for size in tensor.shape)
            plan.add(ENGINES, f"prompt.{tensor.name}", shape, tensor.dtype)

    def _add_target(self, plan: ArenaPlan) -> None:
        geometry, R, B, T = self.geometry, self.shape.requests, self.rows, self.target_rows
        D, P = geometry.hidden, geometry.prompt_length
        kv = self.dtype(TARGET, "past_k_0")
        heads, width = geometry.heads, geometry.head_dim
        plan.add(CACHES, "target_cache", (2 * geometry.layers, B, heads, geometry.capacity, width), kv)
        plan.add(ENGINES, "embeds", (B, T, D), self.dtype(TARGET, "embeds"))
        plan.add(ENGINES, "prompt_embeds", (B, P, D), self.dtype(ENCODE_PROMPT, "prompt_embeds"))
        plan.add(ENGINES, "positions", (B, T), "int64")
        plan.add(ENGINES, "ancestors", (B, T, T), "bool")
        plan.add(ENGINES, "past_length", (B,), "int64")
        plan.add(ENGINES, "prompt_mask", (B, P), "bool")
        plan.add(ENGINES, "logits", (R, T, geometry.vocabulary), "float32")
        plan.add(ENGINES, "features", (B, T, D), self.dtype(TARGET, "features"))
        plan.add(ENGINES, "target_new", (2 * geometry.layers, B, heads, T, width), kv)

    def _add_drafter(self, plan: ArenaPlan) -> None:
        geometry, R, B, A = self.geometry, self.shape.requests, self.rows, self.draft_rows
        N = self.sizes.nodes
        graph = draft_tree_graph(self.shape.trees[0])
        kv, heads, width = self.dtype(graph, "past_k"), geometry.heads, geometry.head_dim
        tensors = 2 * self.manifest.drafter_layers
        plan.add(CACHES, "draft_cache", (tensors, B, heads, geometry.capacity, width), kv)
        plan.add(ENGINES, "draft_features", (B, A, geometry.hidden), self.dtype(graph, "features"))
        for name in ("draft_tokens", "draft_positions"):
            plan.add(ENGINES, name, (B, A), "int64")
        plan.add(ENGINES, "root", (R,), "int64")
        for name in ("count", "draft_past_length"):
            plan.add(ENGINES, name, (B,), "int64")
        for name in ("drafted_tokens", "drafted_parents", "drafted_depth"):
            plan.add(ENGINES, name, (R, N), "int64")
        plan.add(ENGINES, "drafted_ancestors", (R, N, N), "bool")
        plan.add(ENGINES, "drafted_scores", (R, N), "float32")
        levels = max((tree.levels for tree in self.trees.values() if tree.coupled), default=0)
        if levels:
            plan.add(ENGINES, "noise", (R, levels, geometry.vocabulary), "float32")
        plan.add(ENGINES, "draft_new", (tensors, B, heads, A, width), kv)

    @property
    def graphs(self) -> tuple[str, ...]:
        """Graphs that a run needs."""
        return (ENCODE_PROMPT, TARGET, *map(draft_tree_graph, self.shape.trees))


def carried(arrays: Mapping[str, DeviceArray]) -> tuple[DeviceArray, DeviceArray]:
    """The state that steps carry over, and the part of it that two runs must agree on, as bytes."""
    start = arrays[CARRIED[0]].address
    whole, compared = (arrays[names[-1]].end - start for names in (CARRIED, COMPARED))
    return DeviceArray(start, (whole,), "uint8"), DeviceArray(start, (compared,), "uint8")
