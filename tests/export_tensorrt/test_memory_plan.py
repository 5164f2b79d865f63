"""The memory plan against numbers worked out by hand."""

from __future__ import annotations

import io

from rich.console import Console

from vvs.export.tensorrt.memory_plan import in_words, plan_memory, print_memory_plan
from vvs.export.tensorrt.profiles import RequestRange, profiles_of
from vvs.manifest import Manifest


def test_counts_what_the_greatest_shapes_need(manifest: Manifest) -> None:
    profiles = {g: profiles_of(manifest, g, RequestRange(1, 1, 4)) for g in manifest.graphs}
    plan = plan_memory(manifest, profiles, dict.fromkeys(manifest.graphs, 1000))
    by_graph = {g.graph: g for g in plan.graphs}

    target = by_graph["target"]  # 8 rows of B, 12 rows of T
    assert target.caches == 4 * (8 * 2 * 48 * 16) * 2
    assert target.inputs == (8 * 12 * 32) * 2 + (8 * 12) * 8 + (8 * 12 * 12) + 8 * 8 + 4 * 4
    assert target.outputs == (4 * 12 * 96) * 4 + (8 * 12 * 32) * 2 + 4 * (8 * 2 * 12 * 16) * 2

    drafter = by_graph["draft_tree.small"]  # 6 prompt rows are more than a path of 4
    assert drafter.caches == 2 * (8 * 2 * 48 * 16) * 2
    assert drafter.inputs == (8 * 6 * 32) * 2 + 4 * 8 + 8 * 8
    assert drafter.outputs == (4 * 9) * 8 + (8 * 2 * 6 * 16) * 2

    prompt = by_graph["encode_prompt"]  # B is 2 R though no input has it
    assert (prompt.inputs, prompt.outputs) == ((4 * 6) * 8, (8 * 6 * 32) * 2)
    assert plan.caches == target.caches + drafter.caches
    assert plan.total == plan.caches + 4 * 1000 + sum(g.inputs + g.outputs for g in plan.graphs)


def test_prints_a_table(manifest: Manifest) -> None:
    profiles = {"target": profiles_of(manifest, "target", RequestRange(1, 1, 4))}
    out = io.StringIO()
    plan = plan_memory(manifest, profiles, {"target": 3 << 20})
    print_memory_plan(Console(file=out, width=120), plan)
    assert "target" in out.getvalue()
    assert "3.0 MiB" in out.getvalue()
    assert in_words(5 << 30) == "5.0 GiB"
