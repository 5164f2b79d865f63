"""What tests of training a drafter share: the command, pictures, and files of tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from trainings import Train
from typer.testing import CliRunner, Result

from vvs.cli.app import app


@pytest.fixture
def train_for() -> Train:
    """The command, for any target."""

    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(app, ["train-drafter", *map(str, arguments)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.fixture
def train(train_for: Train, tiny_recipe: Path) -> Train:
    """The command, for the tiny recipe."""
    return lambda *arguments: train_for(tiny_recipe, *arguments)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two folders, named for what their pictures show."""
    rng = np.random.default_rng(0)
    for prompt in ("red dress", "blue shirt"):
        folder = tmp_path / "pictures" / prompt
        folder.mkdir(parents=True)
        for i in range(4):
            Image.fromarray(rng.integers(0, 256, (12, 20, 3), np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "pictures"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A ``.npy`` file of eight pictures' tokens, and a prompt for each beside it."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "tokens.npy", rng.integers(96, size=(8, 36), dtype=np.int32))
    (tmp_path / "tokens.txt").write_text("a red dress\nblue shirt\n" * 4)
    return tmp_path / "tokens.npy"
