"""What goes into an engine: its identity and its contract, from bundle, settings and installed builder."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from vvs.engine_record import EngineContract, EngineIdentity, Profile
from vvs.export.tensorrt.flags import BuildFlags
from vvs.export.tensorrt.graph_source import REWRITING
from vvs.export.tensorrt.memory_plan import is_cache
from vvs.manifest import TARGET, Manifest, draft_tree_graph
from vvs.runtime.engine_file import onnx_hash
from vvs.runtime.tensorrt_package import TensorRT


def named_flags(flags: BuildFlags | None = None) -> dict[str, Any]:
    """Flags as an identity holds them, by their names on the command line; the defaults if none are given."""
    named = dataclasses.asdict(flags or BuildFlags())
    return {name.replace("_", "-"): value for name, value in named.items()} | {"rewriting": REWRITING}


def identity_of(
    manifest: Manifest,
    graph: str,
    arch: str,
    package: TensorRT,
    profiles: Sequence[Profile],
    flags: BuildFlags,
) -> EngineIdentity:
    """The identity of an engine that is to be built."""
    return EngineIdentity(
        graph=graph,
        onnx=onnx_hash(manifest, graph),
        profiles=tuple(profiles),
        flags=named_flags(flags),
        builder=package.name,
        version=package.version,
        arch=arch,
    )


def contract_of(manifest: Manifest, graph: str) -> EngineContract:
    """What the engine of ``graph`` promises: a drafter its one tree, every other graph the bundle's trees."""
    geometry = manifest.geometry
    drafted = draft_tree_graph("")
    trees = dict(manifest.trees)
    if graph.startswith(drafted):
        name = graph.removeprefix(drafted)
        trees = {name: trees[name]}
    caches = [t for t in manifest.graphs[graph].inputs if is_cache(t)]
    caches = caches or [t for t in manifest.graphs[TARGET].inputs if is_cache(t)]
    layout = caches[0].shape[1:] if caches else (geometry.heads, geometry.capacity, geometry.head_dim)
    return EngineContract(
        build=manifest.source,
        vocabulary=geometry.vocabulary,
        feature_width=geometry.hidden,
        guidance_rows=geometry.guidance_rows,
        kv_layout=tuple(int(size) for size in layout),
        kv_dtype=caches[0].dtype if caches else manifest.precision,
        trees=trees,
    )
