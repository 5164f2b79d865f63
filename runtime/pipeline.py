"""Pipeline: prompts to pictures on one bundle and one backend.

Batches, streams, previews, cancels and decodes; the drawing itself is a :class:`vvs.decoding.Loop`, and
files are the business of :mod:`vvs.runtime.images`. A pipeline holds no state between calls: threads may
share it, and a call that fails leaves it as it was.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import Float32Array, IntArray
from vvs.checks import check_integer
from vvs.config import GenerationConfig
from vvs.decoding import Generation as Decoded
from vvs.decoding import Loop
from vvs.engine import Conditioning
from vvs.errors import CancelledError, SettingsError
from vvs.runtime.backends import DEFAULT_BACKEND, open_loop
from vvs.runtime.board import Board
from vvs.runtime.bundle import Bundle
from vvs.runtime.prompts import Prompt, encode
from vvs.runtime.settings import resolve
from vvs.runtime.tuned import on_device
from vvs.statistics import Span, Statistics, StepKind, Stopwatch
from vvs.step import BatchNews
from vvs.uniforms import UniformStream

DEFAULT_BATCH = 8
"""More requests at once cost memory, and a CPU is busy with fewer."""

Pixels = NDArray[np.uint8]
"""``[H, W, 3]``."""

Settings = GenerationConfig | str | None
"""A configuration, a mode (with what the bundle recommends for it), or None: the bundle's own mode."""


class Cancel(Protocol):
    """What a ``threading.Event`` is: once set, the run stops at the next step."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


@dataclass(frozen=True, eq=False)
class GeneratedImage:
    """One finished picture and how it came about."""

    index: int
    """Which of the call's prompts it belongs to."""
    prompt: Prompt
    seed: int
    config: GenerationConfig
    tokens: IntArray  # [grid * grid]
    pixels: Pixels
    statistics: Statistics


@dataclass(frozen=True, eq=False)
class Generation:
    """All pictures of one call, in the order of its prompts."""

    images: tuple[GeneratedImage, ...]

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """``[R, H, W, 3]``."""
        return np.stack([image.pixels for image in self.images])

    @property
    def tokens(self) -> IntArray:
        """``[R, grid * grid]``."""
        return np.stack([image.tokens for image in self.images])

    @property
    def statistics(self) -> tuple[Statistics, ...]:
        """One per request."""
        return tuple(image.statistics for image in self.images)


@dataclass(frozen=True, eq=False)
class Progress:
    """How far a call is, after the prefill or a step of the batch under way."""

    first: int
    """Index of the batch's first request among the call's prompts."""
    total: int
    """Tokens of one image."""
    known: tuple[int, ...]
    """Image tokens known so far, for each request of the batch."""
    kinds: tuple[StepKind | None, ...]
    """What this step was for each request of the batch; None if it took no part, as in the prefill."""
    finished: tuple[GeneratedImage, ...] = ()
    """The batch's pictures, with its last step."""
    _boards: tuple[Board, ...] = field(default=(), repr=False)
    _pipeline: "Pipeline | None" = field(default=None, repr=False)

    def tokens(self, request: int) -> IntArray:
        """Return the tokens known at this step for a request of the batch (the prefill's root excepted)."""
        return self._boards[request].tokens(self.known[request])

    def preview(self, request: int) -> Pixels:
        """Decode what a request of the batch looks like so far; what is missing is a neutral colour."""
        if self._pipeline is None:
            raise SettingsError("this progress belongs to no pipeline, so it has no preview")
        return self._pipeline.paint(self._boards[request].tokens(self.known[request]))


@dataclass(frozen=True, eq=False)
class _Job:
    """One request of a call."""

    index: int
    prompt: Prompt
    config: GenerationConfig
    seed: int


class Pipeline:
    """Generates pictures from a bundle. Safe to share between threads."""

    def __init__(self, bundle: Bundle, loop: Loop) -> None:
        self.bundle = bundle
        self._loop = loop

    @classmethod
    def from_bundle(
        cls, path: str | Path, backend: str = DEFAULT_BACKEND, *, verify: bool = True, **options: Any
    ) -> "Pipeline":
        """Open a bundle and the decoding loop on it.

        Args:
            path: the bundle's folder.
            backend: one of :data:`vvs.runtime.backends.BACKENDS`.
            verify: check the hash of every file of the bundle.
            options: the backend's own, such as ``threads``.

        """
        bundle = on_device(Bundle.open(path, verify=verify), backend)
        return cls(bundle, open_loop(bundle, backend, options))

    def configure(self, mode: str | None = None, **options: Any) -> GenerationConfig:
        """Make a configuration from a mode, the bundle's recommendations and options.

        See :func:`vvs.runtime.settings.resolve`.
        """
        return resolve(self.bundle.manifest, mode, **options)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        settings: Settings | Sequence[Settings] = None,
        seeds: int | Sequence[int] = 0,
        *,
        batch: int | None = None,
        cancel: Cancel | None = None,
    ) -> Generation:
        """Generate one picture per prompt; arguments as in :meth:`stream`."""
        finished: list[GeneratedImage] = []
        with closing(self.stream(prompts, settings, seeds, batch=batch, cancel=cancel)) as steps:
            for progress in steps:
                finished += progress.finished
        return Generation(tuple(finished))

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        settings: Settings | Sequence[Settings] = None,
        seeds: int | Sequence[int] = 0,
        *,
        batch: int | None = None,
        cancel: Cancel | None = None,
    ) -> Generator[Progress, None, None]:
        """Generate one picture per prompt, yielding after every step. Closing the generator cancels the run.

        The picture of a prompt depends on its own settings and seed only, not on what it is batched with.

        Args:
            prompts: one or more; see :data:`vvs.runtime.prompts.Prompt`.
            settings: for all prompts, or one for each.
            seeds: one for each prompt; a single number n stands for n, n + 1, ...
            batch: requests decoded at once; None is 8, or fewer if the bundle takes fewer.
            cancel: looked at before every step.

        Raises:
            SettingsError, PromptError: at once.
            CancelledError: from the generator, when ``cancel`` is set.

        """
        jobs = self._jobs(prompts, settings, seeds)
        size = self._batch_size(batch)
        batches = [jobs[start : start + size] for start in range(0, len(jobs), size)]
        # All prompts and settings are checked before the first batch runs.
        runs = [(group, *self._start(group)) for group in batches]
        return self._stream(runs, cancel)

    def warm_up(
        self,
        prompts: Prompt | Sequence[Prompt],
        settings: Settings | Sequence[Settings] = None,
        *,
        batch: int | None = None,
    ) -> None:
        """Make ready for calls like this one: open graphs, take memory, capture every kind of step.

        What is captured depends on the size of the batches and on their draft trees, not on the prompts.

        Args:
            prompts: as for :meth:`stream`; any will do.
            settings: as for :meth:`stream`.
            batch: as for :meth:`stream`.

        """
        jobs = self._jobs(prompts, settings, 0)
        size = self._batch_size(batch)
        for start in range(0, len(jobs), size):
            self._loop.warm_up(*self._inputs(jobs[start : start + size]))
        self.paint(np.zeros(0, np.int64))

    def paint(self, tokens: IntArray) -> Pixels:
        """Decode a complete or partial image ``[known]``; missing tokens are the neutral one."""
        grid = np.full((1, self._loop.geometry.image_tokens), self._neutral, np.int64)
        grid[0, : tokens.size] = tokens
        return to_pixels(self._loop.decode_image(grid)[0])

    @cached_property
    def _neutral(self) -> int:
        """The code nearest to the mean of all codes."""
        latents = self.bundle.codebook.latents.astype(np.float64)
        return int(np.square(latents - latents.mean(axis=0)).sum(axis=1).argmin())

    def _jobs(
        self,
        prompts: Prompt | Sequence[Prompt],
        settings: Settings | Sequence[Settings],
        seeds: int | Sequence[int],
    ) -> list[_Job]:
        listed = [prompts] if isinstance(prompts, str | int | np.ndarray) else list(prompts)
        if not listed:
            raise SettingsError("no prompts are given; give at least one")
        R = len(listed)
        configs = (
            [settings] * R
            if settings is None or isinstance(settings, str | GenerationConfig)
            else list(settings)
        )
        numbers = list(range(seeds, seeds + R)) if isinstance(seeds, int) else list(seeds)
        for what, given in (("settings", len(configs)), ("seeds", len(numbers))):
            if given != R:
                raise SettingsError(f"{given} {what} are given for {R} prompts; give one, or one for each")
        for seed in numbers:
            check_integer("seed", seed, at_least=0)
        return [
            _Job(index, prompt, self._config(setting), seed)
            for index, (prompt, setting, seed) in enumerate(zip(listed, configs, numbers, strict=True))
        ]

    def _config(self, setting: Settings) -> GenerationConfig:
        return setting if isinstance(setting, GenerationConfig) else self.configure(setting)

    def _batch_size(self, batch: int | None) -> int:
        most = self.bundle.manifest.max_requests
        if batch is None:
            return min(DEFAULT_BATCH, most)
        check_integer("batch", batch, at_least=1)
        if batch > most:
            raise SettingsError(f"batch is {batch}, but this bundle's engines take at most {most}")
        return batch

    def _start(self, jobs: list[_Job]) -> tuple[Generator[BatchNews, None, Decoded]]:
        return (self._loop.run(*self._inputs(jobs)),)

    def _inputs(self, jobs: list[_Job]) -> tuple[Conditioning, list[GenerationConfig], list[UniformStream]]:
        """What a loop takes of a batch."""
        conditioning = encode(self.bundle, [job.prompt for job in jobs])
        return conditioning, [job.config for job in jobs], [UniformStream(job.seed) for job in jobs]

    def _stream(
        self,
        runs: list[tuple[list[_Job], Generator[BatchNews, None, Decoded]]],
        cancel: Cancel | None,
    ) -> Generator[Progress, None, None]:
        for jobs, events in runs:
            with closing(events):
                yield from self._stream_batch(jobs, events, cancel)

    def _stream_batch(
        self, jobs: list[_Job], events: Generator[BatchNews, None, Decoded], cancel: Cancel | None
    ) -> Generator[Progress, None, None]:
        total = self._loop.geometry.image_tokens
        boards = tuple(Board(total) for _ in jobs)
        while True:
            if cancel is not None and cancel.is_set():
                raise CancelledError("the generation was cancelled")
            try:
                event = next(events)
            except StopIteration as end:
                finished = self._finish(jobs, end.value)
                known, nothing = (total,) * len(jobs), (None,) * len(jobs)
                yield Progress(jobs[0].index, total, known, nothing, finished, boards, self)
                return
            kinds: list[StepKind | None] = [None] * len(jobs)
            for record in event.records:
                boards[record.request].add(record)
                kinds[record.request] = record.kind
            known = event.known if event.records else (0,) * len(jobs)
            yield Progress(jobs[0].index, total, known, tuple(kinds), (), boards, self)

    def _finish(self, jobs: list[_Job], decoded: Decoded) -> tuple[GeneratedImage, ...]:
        """Turn a batch's tokens into pictures, one by one: what they are batched with changes nothing."""
        images = []
        for job, tokens, statistics in zip(jobs, decoded.tokens, decoded.statistics, strict=True):
            watch = Stopwatch()
            with watch.measure(Span.DECODE):
                pixels = self.paint(tokens)
            statistics.seconds[Span.DECODE] += watch.seconds(Span.DECODE)
            images.append(
                GeneratedImage(job.index, job.prompt, job.seed, job.config, tokens, pixels, statistics)
            )
        return tuple(images)


def to_pixels(image: Float32Array) -> Pixels:
    """Turn an image ``[3, H, W]`` in [-1, 1] into pixels ``[H, W, 3]``."""
    scaled = np.clip(np.rint((image + 1) * 127.5), 0, 255)
    return np.ascontiguousarray(scaled.transpose(1, 2, 0).astype(np.uint8))
