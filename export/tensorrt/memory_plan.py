"""Memory plan: what the engines of a bundle hold on a GPU at the greatest shapes of their profiles.

Counted from shapes, before anything is built: weights, caches, inputs and outputs. What layers need in
between is known only to an engine that is open on a GPU; ``--mem-pool-size`` bounds it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from vvs.engine_record import Profile
from vvs.manifest import Manifest, TensorSpec, draft_tree_graph

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CACHE_PREFIX = "past_"
NO_CACHE = ("past_length",)
BFLOAT16_BYTES = 2


@dataclass(frozen=True)
class GraphMemory:
    """Bytes of one graph's engine."""

    graph: str
    weights: int
    caches: int
    """Inputs that live as long as the session: the KV caches."""
    inputs: int
    """The other inputs, in the profile where they are largest."""
    outputs: int
    """Outputs, in the profile where they are largest."""


@dataclass(frozen=True)
class MemoryPlan:
    """All graphs. Draft trees share one cache, since a session drafts with one of them at a time."""

    graphs: tuple[GraphMemory, ...]

    @property
    def caches(self) -> int:
        """Bytes of all KV caches."""
        drafts = [g.caches for g in self.graphs if g.graph.startswith(draft_tree_graph(""))]
        return sum(g.caches for g in self.graphs) - sum(drafts) + max(drafts, default=0)

    @property
    def total(self) -> int:
        """Bytes of everything that is counted."""
        return self.caches + sum(g.weights + g.inputs + g.outputs for g in self.graphs)


def plan_memory(
    manifest: Manifest, profiles: Mapping[str, Sequence[Profile]], weights: Mapping[str, int]
) -> MemoryPlan:
    """Count the graphs in ``profiles``; ``weights`` are bytes by graph."""
    return MemoryPlan(
        tuple(_graph(manifest, graph, chosen, weights[graph]) for graph, chosen in profiles.items())
    )


def _graph(manifest: Manifest, graph: str, profiles: Sequence[Profile], weights: int) -> GraphMemory:
    spec = manifest.graphs[graph]
    caches = [t for t in spec.inputs if is_cache(t)]
    others = [t for t in spec.inputs if not is_cache(t)]

    def most(tensors: Sequence[TensorSpec]) -> int:
        g = manifest.geometry.guidance_rows
        return max(_bytes(tensors, spec.inputs, profile, g) for profile in profiles)

    return GraphMemory(
        graph,
        weights,
        caches=most(caches),
        inputs=most(others),
        outputs=most(spec.outputs),
    )


def is_cache(tensor: TensorSpec) -> bool:
    """Whether an input is a KV cache."""
    return tensor.name.startswith(CACHE_PREFIX) and tensor.name not in NO_CACHE


def _bytes(
    tensors: Sequence[TensorSpec], inputs: Sequence[TensorSpec], profile: Profile, guidance_rows: int
) -> int:
    """Bytes of ``tensors`` where every symbol has the greatest value its inputs have in the profile."""
    sizes = {
        symbol: size
        for tensor in inputs
        for symbol, size in zip(tensor.shape, profile.shapes[tensor.name].max, strict=True)
        if isinstance(symbol, str)
    }
    sizes.setdefault("B", guidance_rows * sizes.get("R", 1))
    total = 0
    for tensor in tensors:
        elements = 1
        for size in tensor.shape:
            elements *= sizes[size] if isinstance(size, str) else size
        total += elements * _itemsize(tensor.dtype)
    return total


def _itemsize(dtype: str) -> int:
    return BFLOAT16_BYTES if dtype == "bfloat16" else np.dtype(dtype).itemsize


def in_words(size: int) -> str:
    """Bytes with a unit."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size / KIB:,.1f} KiB"


def print_memory_plan(console: Console, plan: MemoryPlan) -> None:
    """Print the plan as a table."""
    table = Table(
        "graph", *(name for name in ("weights", "KV caches", "inputs", "outputs")),
        title=f"Memory on the GPU at the greatest shapes: {in_words(plan.total)} and scratch",
        title_justify="left", box=box.SIMPLE_HEAD,
    )  # fmt: skip
    for g in plan.graphs:
        sizes = (g.weights, g.caches, g.inputs, g.outputs)
        table.add_row(g.graph, *(in_words(size) if size else "-" for size in sizes))
    console.print(table)
