"""Quality: one number for how good a configuration's pictures are; the more the better."""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np

from vvs.benchmarks.optional import require
from vvs.config import GenerationConfig
from vvs.errors import SettingsError
from vvs.runtime.images import save_png
from vvs.runtime.pipeline import Pipeline

SEED = 1000


class Quality(Protocol):
    """Judges configurations, always on the same prompts and seeds."""

    def of(self, pipeline: Pipeline, config: GenerationConfig) -> float:
        """Draw and judge."""
        ...


class ClassifierScore:
    """For the demo model: the percentage of pictures that show the colour and the garment asked for."""

    def __init__(self, weights: Path, pictures: int) -> None:
        require("torch", "the classifier score", "export")
        from vvs.benchmarks.judge import Judge, asked

        self._judge = Judge(weights)
        self._prompts, self._colours, self._garments = asked(pictures)

    def of(self, pipeline: Pipeline, config: GenerationConfig) -> float:
        """Draw and judge; percent."""
        pixels = pipeline.generate(self._prompts, config, SEED).pixels
        judged = self._judge.judge(pixels, self._colours, self._garments)
        return 100 * float(judged.both_right.mean())


class CommandMetric:
    """A user's command: it is given a folder of PNG files and prints a number in its last line."""

    def __init__(self, command: str, prompts: Sequence[str], pictures: int) -> None:
        self._command = shlex.split(command)
        self._prompts = [prompts[i % len(prompts)] for i in range(pictures)]
        if not self._command:
            raise SettingsError("--metric is empty, but it must be a command that takes a folder")

    def of(self, pipeline: Pipeline, config: GenerationConfig) -> float:
        """Draw, and run the command.

        Raises:
            SettingsError: the command failed or printed no number.

        """
        with TemporaryDirectory() as folder:
            for image in pipeline.generate(self._prompts, config, SEED).images:
                save_png(Path(folder) / f"{image.index:05}.png", image.pixels)
            return self._run(folder)

    def _run(self, folder: str) -> float:
        shown = shlex.join(self._command)
        try:
            done = subprocess.run([*self._command, folder], capture_output=True, text=True, check=True)  # noqa: S603
        except OSError as error:
            raise SettingsError(f"the metric {shown!r} cannot be run: {error}") from error
        except subprocess.CalledProcessError as error:
            said = error.stderr.strip().splitlines()[-1:] or ["nothing"]
            raise SettingsError(
                f"the metric {shown!r} ended with exit code {error.returncode}; it said: {said[0]}"
            ) from error
        lines = done.stdout.split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        try:
            value = float(last)
        except ValueError:
            value = float("nan")
        if not np.isfinite(value):
            raise SettingsError(
                f"the metric {shown!r} printed {last!r} last, but that must be a number, the more the better"
            )
        return value
