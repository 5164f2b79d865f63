"""TensorRT takes every precision: engines built for real, with no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vvs.export.tensorrt.builder import build_engines
from vvs.export.tensorrt.profiles import RequestRange
from vvs.export.tensorrt.settings import BuildSettings
from vvs.manifest import TARGET
from vvs.runtime.bundle import Bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vvs.runtime.tensorrt_package import TensorRT

GRAPHS = (TARGET, "draft_tree.tiny")


@pytest.mark.parametrize("precision", ["bf16", "int8", "int8-fp16", "int8-bf16"])
def test_builds_target_and_drafter(
    rtx: TensorRT, tiny_bundle_in: Callable[[str], Path], tmp_path: Path, precision: str
) -> None:
    bundle = Bundle.open(tiny_bundle_in(precision))
    settings = BuildSettings("tensorrt-rtx", ("sm_89",), GRAPHS, RequestRange(1, 1, 2))
    outcomes = build_engines(bundle, settings)
    assert [outcome.path.name for outcome in outcomes] == [f"{graph}.sm_89.engine" for graph in GRAPHS]
    assert all(outcome.bytes > 0 for outcome in outcomes)
