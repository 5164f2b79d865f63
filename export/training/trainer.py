"""Trainer: one resumable optimisation loop that every stage of the demo model shares.

A stage says what a step costs; the trainer optimises, averages weights, reports and saves. The random
numbers of step i depend on the seed and i alone, so an interrupted run goes on as if never stopped.
"""

import math
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import PickleError
from typing import Any, Protocol

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from vvs.errors import SettingsError, VvsError
from vvs.runtime.whole_file import whole_file

Value = int | float | str
"""Of a setting that a run must go on with."""


@dataclass(frozen=True)
class TrainSettings:
    """How long and how fast to train."""

    steps: int
    batch: int
    learning_rate: float
    warmup: int = 100
    weight_decay: float = 0.05
    beta2: float = 0.95
    clip: float = 1.0
    average_decay: float = 0.998
    seed: int = 0
    save_seconds: float = 60.0
    report_every: int = 50

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1:
            raise SettingsError(f"steps and batch must be at least 1, got {self.steps} and {self.batch}")
        if not 0 < self.average_decay < 1:
            raise SettingsError(f"average_decay is {self.average_decay}, but it must lie between 0 and 1")


class Stage(Protocol):
    """One trainable part of the demo model."""

    @property
    def name(self) -> str:
        """Short name; the run's files are called after it."""
        ...

    @property
    def module(self) -> nn.Module:
        """Everything with state, trained or tracked."""
        ...

    def losses(self, batch: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Scalar tensors by name for one batch; ``loss`` is the one that is minimised."""
        ...


def _learning_rate(settings: TrainSettings, step: int) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    share = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share)))


def _optimizer(module: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    matrices = [p for p in module.parameters() if p.requires_grad and p.ndim >= 2]
    vectors = [p for p in module.parameters() if p.requires_grad and p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, settings.beta2))


class _Run:
    """State of one training run: module, optimizer, averaged weights, step."""

    def __init__(
        self, stage: Stage, settings: TrainSettings, folder: Path, step: int, basis: Mapping[str, Value]
    ) -> None:
        self.stage = stage
        self.basis = {"seed": settings.seed, "batch": settings.batch, **basis}
        self.settings = settings
        self.path = folder / f"{stage.name}.train.pt"
        self.optimizer = _optimizer(stage.module, settings)
        self.average = {k: v.detach().clone() for k, v in stage.module.state_dict().items()}
        self.step = step

    def save(self) -> None:
        """Write the whole state under a temporary name, then rename it."""
        state = {
            "step": self.step,
            "module": self.stage.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "basis": self.basis,
        }
        with whole_file(self.path) as temporary:
            torch.save(state, temporary)

    def resume(self) -> bool:
        """Load an interrupted run, if there is one."""
        if not self.path.is_file():
            return False
        with self._fitting():
            state: dict[str, Any] = torch.load(self.path, weights_only=True)
            # States of older versions do not say what they began with.
            began, step = state.get("basis", {}), state["step"]
        self._require_same(began, step)
        with self._fitting():
            self.stage.module.load_state_dict(state["module"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.average, self.step = state["average"], step
        return True

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, KeyError, ValueError, EOFError, PickleError, struct.error) as error:
            raise VvsError(
                f"the training state {self.path} does not fit this stage ({type(error).__name__}); "
                "remove it to start afresh"
            ) from error

    def _require_same(self, began: Mapping[str, Value], step: int) -> None:
        if step > self.settings.steps:
            raise SettingsError(
                f"the run in {self.path.parent} has {step} steps behind it, more than {self.settings.steps}"
            )
        for name, value in self.basis.items():
            if began.get(name, value) != value:
                raise SettingsError(
                    f"the run in {self.path.parent} began with {name} {began[name]}, but it is to go on with "
                    f"{name} {value}; go on as it began, or begin afresh in another folder"
                )

    def update(self) -> dict[str, float]:
        """One optimisation step."""
        settings = self.settings
        rng = np.random.default_rng((settings.seed, self.step))
        torch.manual_seed(int(rng.integers(2**31)))
        for group in self.optimizer.param_groups:
            group["lr"] = _learning_rate(settings, self.step)
        losses = self.stage.losses(settings.batch, rng)
        self.optimizer.zero_grad(set_to_none=True)
        losses["loss"].backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.stage.module.parameters(), settings.clip)
        if not torch.isfinite(norm):
            raise VvsError(f"{self.stage.name}: the gradient of step {self.step} is not finite")
        self.optimizer.step()
        self._average()
        self.step += 1
        return {name: float(value.detach()) for name, value in losses.items()}

    @torch.no_grad()
    def _average(self) -> None:
        # Early on the average must forget its random start: the decay grows with the steps.
        decay = min(self.settings.average_decay, (1 + self.step) / (10 + self.step))
        for name, value in self.stage.module.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - decay)
            else:
                self.average[name].copy_(value)


def train(
    stage: Stage,
    settings: TrainSettings,
    folder: Path,
    console: Console,
    step: int = 0,
    basis: Mapping[str, Value] = {},
) -> None:
    """Train ``stage`` to the end and leave the averaged weights in its module.

    The state is saved into ``folder`` once a minute and at the end; a later call goes on from there. Without
    a state, training starts at ``step``: more than 0 for a module that has been trained before.

    Args:
        stage: what is trained.
        settings: of the whole run, however often it is stopped.
        folder: of the state.
        console: where progress is shown.
        step: where a run without a state starts.
        basis: what data and losses depend on besides seed and batch, by names that users know.

    Raises:
        SettingsError: the run in ``folder`` began with another seed, batch or basis; with both values.
        VvsError: its state is damaged or of another stage, or a gradient is not finite.

    """
    run = _Run(stage, settings, folder, step, basis)
    if run.resume():
        console.print(f"{stage.name}: going on from step {run.step} of {settings.steps}")
    stage.module.train()
    saved = time.monotonic()
    smooth: dict[str, float] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(stage.name, total=settings.steps, completed=run.step, metrics="")
        while run.step < settings.steps:
            for name, value in run.update().items():
                smooth[name] = value if name not in smooth else 0.98 * smooth[name] + 0.02 * value
            text = "  ".join(f"{name} {value:.4f}" for name, value in smooth.items())
            progress.update(task, completed=run.step, metrics=text)
            if not console.is_terminal and run.step % settings.report_every == 0:
                console.print(f"{stage.name} {run.step}/{settings.steps}  {text}", highlight=False)
            if time.monotonic() - saved > settings.save_seconds:
                run.save()
                saved = time.monotonic()
    run.save()
    stage.module.load_state_dict(run.average)
    stage.module.eval()
