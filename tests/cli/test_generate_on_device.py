"""`vvs generate` on the stand-in for a GPU: flags, and what it says before it takes memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from vvs.cli.app import app

pytest.importorskip("onnxruntime")


def test_graphs_can_be_turned_off_and_the_memory_plan_is_shown(tiny_bundle: Path, tmp_path: Path) -> None:
    pictures = []
    for flags in (
        [],
        ["--no-cuda-graphs"],
        ["--whole-image-graph"],
        ["--backend", "onnxruntime"],
    ):
        out = tmp_path / str(len(pictures))
        backend = [] if "--backend" in flags else ["--backend", "cuda-on-host"]
        command = ["generate", str(tiny_bundle), "a red dress", "--threads", "1", "-o", str(out)]
        result = CliRunner().invoke(app, [*command, *backend, *flags])
        assert result.exit_code == 0, result.stderr
        assert ("a run of 1 requests takes" in result.stderr) == bool(backend)
        pictures.append(np.asarray(Image.open(next(out.glob("*.png")))))
    for picture in pictures[:-1]:
        np.testing.assert_array_equal(picture, pictures[-1])


def test_an_option_that_a_backend_lacks_is_a_sentence(tiny_bundle: Path) -> None:
    result = CliRunner().invoke(app, ["generate", str(tiny_bundle), "a red dress", "--no-cuda-graphs"])
    assert result.exit_code == 2
    assert "the backend 'onnxruntime' has no option 'cuda_graphs'; it has threads" in result.stderr


def test_a_whole_image_wants_captured_steps(tiny_bundle: Path) -> None:
    command = ["generate", str(tiny_bundle), "a red dress", "--backend", "cuda-on-host"]
    result = CliRunner().invoke(app, [*command, "--no-cuda-graphs", "--whole-image-graph"])
    assert result.exit_code == 2
    assert "whole_image_graph is set but cuda_graphs is not" in result.stderr
    assert "Traceback" not in result.stderr
