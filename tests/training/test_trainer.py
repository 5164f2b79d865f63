"""The trainer: resuming is exact, and what it saves is whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from vvs.errors import SettingsError, VvsError
from vvs.export.training.trainer import TrainSettings, train

QUIET = Console(quiet=True)


class Line:
    """Fits a line to noisy points."""

    name = "line"

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.module: nn.Module = nn.Linear(1, 1)

    def losses(self, batch: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        x = torch.from_numpy(rng.normal(size=(batch, 1)).astype(np.float32))
        noise = torch.randn(batch, 1) * 0.01
        return {"loss": (self.module(x) - (2 * x + 1) + noise).square().mean()}


class Stopping(Line):
    """Is interrupted at its fourth batch."""

    left = 4

    def losses(self, batch: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().losses(batch, rng)


SETTINGS = TrainSettings(steps=12, batch=4, learning_rate=0.1, warmup=2, save_seconds=0.0)


def weights(stage: Line) -> list[Tensor]:
    return [value.clone() for value in stage.module.state_dict().values()]


def test_an_interrupted_run_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    whole = Line()
    train(whole, SETTINGS, tmp_path / "whole", QUIET)
    with pytest.raises(KeyboardInterrupt):
        train(Stopping(), SETTINGS, tmp_path / "parts", QUIET)
    rest = Line()
    train(rest, SETTINGS, tmp_path / "parts", QUIET)
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(rest), strict=True))
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["line.train.pt"]


def test_training_learns(tmp_path: Path) -> None:
    stage = Line()
    train(stage, TrainSettings(steps=300, batch=16, learning_rate=0.05, warmup=10), tmp_path, QUIET)
    slope, offset = (float(value) for value in weights(stage))
    assert abs(slope - 2) < 0.05
    assert abs(offset - 1) < 0.05


def test_a_state_of_another_stage_is_refused(tmp_path: Path) -> None:
    train(Line(), SETTINGS, tmp_path, QUIET)
    other = Line()
    other.module = nn.Linear(2, 2)
    with pytest.raises(VvsError, match=r"line\.train\.pt does not fit this stage"):
        train(other, SETTINGS, tmp_path, QUIET)


def test_what_a_run_depends_on_stays(tmp_path: Path) -> None:
    train(Line(), SETTINGS, tmp_path, QUIET, basis={"pictures": "cats"})
    path = tmp_path / "line.train.pt"
    before = path.read_bytes()
    with pytest.raises(SettingsError, match=r"began with pictures cats, but .* with pictures dogs"):
        train(Line(), SETTINGS, tmp_path, QUIET, basis={"pictures": "dogs"})
    with pytest.raises(SettingsError, match="began with seed 0, but it is to go on with seed 1"):
        train(Line(), replace(SETTINGS, seed=1), tmp_path, QUIET, basis={"pictures": "cats"})
    with pytest.raises(SettingsError, match="has 12 steps behind it, more than 11"):
        train(Line(), replace(SETTINGS, steps=11), tmp_path, QUIET, basis={"pictures": "cats"})
    assert path.read_bytes() == before
    state = torch.load(path)
    del state["basis"]
    torch.save(state, path)
    train(Line(), SETTINGS, tmp_path, QUIET, basis={"pictures": "dogs"})


@pytest.mark.parametrize(
    "damage", [b"", b"no state", b"\x80\x02junk", b"PK\x03\x04 damaged", "cut", "no average"]
)
def test_a_damaged_state_is_refused_and_left_alone(tmp_path: Path, damage: bytes | str) -> None:
    train(Line(), SETTINGS, tmp_path, QUIET)
    path = tmp_path / "line.train.pt"
    if damage == "no average":
        state = torch.load(path)
        del state["average"]
        torch.save(state, path)
    else:
        path.write_bytes(path.read_bytes()[:700] if isinstance(damage, str) else damage)
    before = path.read_bytes()
    with pytest.raises(
        VvsError, match=r"line\.train\.pt does not fit this stage .*remove it to start afresh"
    ):
        train(Line(), SETTINGS, tmp_path, QUIET)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"), [({"steps": 0}, "at least 1"), ({"average_decay": 1.0}, "between 0 and 1")]
)
def test_impossible_settings(change: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TrainSettings(**({"steps": 1, "batch": 1, "learning_rate": 0.1} | change))  # type: ignore[arg-type]
