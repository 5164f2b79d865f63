"""Decoder: the draft / skip / verify loop over an engine, for a batch of requests.

A step is three beats: propose a tree per request; verify it or skip verification; commit. Requests of one
batch may decode in different modes: in one step some may skip, some verify, and some be finished. Plain
AR decoding is the same loop over trees that are a root only.

What is drafted, accepted, skipped and selected is decided by the objects in each request's configuration;
what runs the models is decided by the engine. Images are not decoded here.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from vvs.acceptance import Verdict, walk, walk_coupled
from vvs.arrays import Float32Array, Float64Array, IntArray
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.engine import Conditioning, Engine, Session
from vvs.errors import SettingsError
from vvs.geometry import Geometry
from vvs.noise import GumbelNoise
from vvs.request import Request
from vvs.rows import Cohort, draft_rows, target_rows
from vvs.sampling import couple, process, sample
from vvs.statistics import Span, Statistics, StepTimes, Stopwatch
from vvs.step import BatchNews, Outcome, StepEvent, StepRecord, Verified
from vvs.tree import tree_of
from vvs.tree_shape import TreeShape
from vvs.uniforms import Uniforms

WARM_UP_EVENTS = 4
"""The prefill and the first steps."""
News = TypeVar("News")
"""What a loop tells after a step."""


class Generation(NamedTuple):
    """A finished batch of R requests."""

    tokens: IntArray  # [R, grid * grid]
    statistics: tuple[Statistics, ...]  # R


@runtime_checkable
class Loop(Protocol):
    """Decodes batches, wherever the decisions are taken. Safe to share between threads.

    :class:`Decoder` decides on the host over an engine; a loop that decides on a device is a backend's own.
    """

    @property
    def geometry(self) -> Geometry:
        """Sizes of the models."""
        ...

    def run(
        self,
        conditioning: Conditioning,
        configs: Sequence[GenerationConfig],
        streams: Sequence[Uniforms],
    ) -> Generator[BatchNews, None, Generation]:
        """Decode one image per request, as :meth:`Decoder.run`."""
        ...

    def warm_up(
        self,
        conditioning: Conditioning,
        configs: Sequence[GenerationConfig],
        streams: Sequence[Uniforms],
    ) -> None:
        """Do once, for batches of this shape, what the first steps of each kind have to wait for."""
        ...

    def decode_image(self, tokens: IntArray) -> Float32Array:
        """Turn complete token grids ``[R, grid * grid]`` into images ``[R, 3, H, W]`` in [-1, 1]."""
        ...


class Decoder:
    """Decodes batches on one engine. Holds no state between runs; may be shared between threads."""

    def __init__(self, engine: Engine, codebook: Codebook) -> None:
        if codebook.vocabulary != engine.geometry.vocabulary:
            raise SettingsError(
                f"the codebook has {codebook.vocabulary} entries, but the engine's vocabulary is "
                f"{engine.geometry.vocabulary}; use the codebook of the engine's own image tokenizer"
            )
        self._engine = engine
        self._codebook = codebook

    @property
    def geometry(self) -> Geometry:
        """Sizes of the engine's models."""
        return self._engine.geometry

    def decode_image(self, tokens: IntArray) -> Float32Array:
        """Turn complete token grids ``[R, grid * grid]`` into images ``[R, 3, H, W]`` in [-1, 1]."""
        return self._engine.decode_image(tokens)

    def run(
        self,
        conditioning: Conditioning,
        configs: Sequence[GenerationConfig],
        streams: Sequence[Uniforms],
    ) -> Generator[StepEvent, None, Generation]:
        """Decode one image per request, yielding after the prefill and after every step.

        The generator's return value is the finished batch (see :meth:`generate`). Closing it early cancels
        the run and frees the session. The requests' tokens do not depend on what they are batched with, as
        far as the engine's arithmetic does not.

        Args:
            conditioning: inputs of the engine's prompt encoder by name, each ``[R, ...]``.
            configs: R configurations.
            streams: R streams of uniform numbers, one for each request alone.

        Raises:
            SettingsError: at once, if a configuration does not fit the engine or the codebook, or the lengths
                differ.

        """
        trees, geometry = self._engine.trees, self._engine.geometry
        check_batch(trees, self._codebook, conditioning, configs, streams)
        requests = [
            Request(
                index,
                config,
                stream,
                geometry.image_tokens,
                [trees[name] for name in trees_of(config)],
                GumbelNoise.drawn(stream, geometry.vocabulary) if config.draws_by_noise else None,
            )
            for index, (config, stream) in enumerate(zip(configs, streams, strict=True))
        ]
        return self._run(conditioning, requests)

    def warm_up(
        self,
        conditioning: Conditioning,
        configs: Sequence[GenerationConfig],
        streams: Sequence[Uniforms],
    ) -> None:
        """Open the graphs and take the session's memory, by a prefill and some steps."""
        with closing(self.run(conditioning, configs, streams)) as events:
            for _ in islice(events, WARM_UP_EVENTS):
                pass

    def generate(
        self,
        conditioning: Conditioning,
        configs: Sequence[GenerationConfig],
        streams: Sequence[Uniforms],
        observe: Callable[[StepEvent], None] = lambda event: None,
    ) -> Generation:
        """Decode to the end, as :meth:`run`, passing every event to ``observe``."""
        return finish(self.run(conditioning, configs, streams), observe)

    def _run(
        self, conditioning: Conditioning, requests: list[Request]
    ) -> Generator[StepEvent, None, Generation]:
        with closing(self._engine.open(len(requests))) as session:
            batch = _Batch(session, self._codebook, self._engine.trees, requests)
            yield batch.prefill(conditioning)
            while not all(request.complete for request in requests):
                yield batch.step()
        return Generation(
            np.stack([request.image() for request in requests]),
            tuple(request.statistics for request in requests),
        )


def finish(
    run: Generator[News, None, Generation], observe: Callable[[News], None] = lambda news: None
) -> Generation:
    """Go on with a run of a loop to its end, passing everything it yields to ``observe``."""
    with closing(run) as events:
        while True:
            try:
                news = next(events)
            except StopIteration as end:
                finished: Generation = end.value
                return finished
            observe(news)


def trees_of(config: GenerationConfig) -> list[str]:
    """Names of the draft trees that a configuration uses."""
    return [name for name in (config.tree, config.skip_tree) if name is not None]


def check_batch(
    trees: Mapping[str, TreeShape],
    codebook: Codebook,
    conditioning: Conditioning,
    configs: Sequence[GenerationConfig],
    streams: Sequence[Uniforms],
) -> None:
    """Raise SettingsError unless a batch fits together, and its models and codebook."""
    R = len(configs)
    if not R or len(streams) != R:
        raise SettingsError(
            f"{R} configurations and {len(streams)} streams are given; give one of each per request, "
            "and at least one request"
        )
    if len({id(stream) for stream in streams}) < R:
        raise SettingsError("two requests share a stream of uniform numbers; give each its own")
    for name, array in conditioning.items():
        if array.shape[:1] != (R,):
            raise SettingsError(f"conditioning {name!r} has shape {array.shape}, but must be [{R}, ...]")
    for config in configs:
        for name in trees_of(config):
            if name not in trees:
                known = ", ".join(trees) or "none"
                raise SettingsError(f"unknown draft tree {name!r}; this engine drafts {known}")
            if trees[name].coupled and not config.coupled:
                raise SettingsError(
                    f"the draft tree {name} is drafted with the target's noise, but coupled is false; "
                    "set coupled (--coupled), or use another tree"
                )
        codebook.require(config.acceptance.neighbours)


class _Batch:
    """Requests under way on one session."""

    def __init__(
        self,
        session: Session,
        codebook: Codebook,
        trees: Mapping[str, TreeShape],
        requests: list[Request],
    ) -> None:
        self._session = session
        self._codebook = codebook
        self._trees = trees
        self._vocabulary = codebook.vocabulary
        self._requests = requests
        self._cohorts: dict[tuple[int, ...], Cohort] = {}
        self._stopwatch = Stopwatch()

    def prefill(self, conditioning: Conditioning) -> StepEvent:
        """Run the prompts and sample the first roots."""
        self._stopwatch.resume()
        requests = self._requests
        with self._stopwatch.measure(Span.PREFILL):
            logits, features = self._session.prefill(conditioning, self._cohort(requests).cfg_scale)
        by_request = features.reshape(-1, len(requests), *features.shape[1:])
        with self._stopwatch.measure(Span.ACCEPT):
            for i, request in enumerate(requests):
                request.begin(_first_root(logits[i, -1], request), by_request[:, i])
        times = self._stopwatch.lap(self._session.engine_seconds)
        for request in requests:
            request.statistics.count_prefill(times)
        return self._event([], times)

    def step(self) -> StepEvent:
        """Propose; verify or skip; commit."""
        self._stopwatch.resume()
        active = [request for request in self._requests if not request.complete]
        self._propose(active)
        outcomes = self._skip(active)
        outcomes |= self._verify([request for request in active if request.index not in outcomes])
        records = [_record(request, outcomes[request.index]) for request in active]
        self._commit(active, outcomes)
        times = self._stopwatch.lap(self._session.engine_seconds)
        for request, record in zip(active, records, strict=True):
            request.statistics.count_step(record.kind, record.accept, times)
        return self._event(records, times)

    def _cohort(self, requests: list[Request]) -> Cohort:
        """The requests of one call; the same ones are met in one step after another."""
        key = tuple([request.index for request in requests])
        cohort = self._cohorts.get(key)
        if cohort is None:
            cohort = self._cohorts[key] = Cohort(requests)
        return cohort

    def _propose(self, active: list[Request]) -> None:
        """Give every request a tree: one drafting call per tree shape, none for plain AR decoding."""
        by_tree: dict[str, list[Request]] = {}
        for request in active:
            tree = request.tree_name
            if tree is None:
                request.propose_root()
            else:
                by_tree.setdefault(tree, []).append(request)
        for name, requests in by_tree.items():
            cohort = self._cohort(requests)
            inputs = draft_rows(cohort, self._trees[name], self._vocabulary)
            with self._stopwatch.measure(Span.DRAFT):
                drafted = self._session.draft(cohort.rows, inputs, name)
            for i, request in enumerate(requests):
                request.propose(tree_of(drafted, i))

    def _skip(self, active: list[Request]) -> dict[int, Outcome]:
        """Take a path unverified for every request whose policy wants to."""
        choices = ((request.index, request.skip(self._codebook)) for request in active)
        return {index: skipped for index, skipped in choices if skipped is not None}

    def _verify(self, requests: list[Request]) -> dict[int, Outcome]:
        """Run the target on chains and trees, walk the trees and sample the next roots."""
        if not requests:
            return {}
        cohort = self._cohort(requests)
        inputs, spans = target_rows(cohort)
        with self._stopwatch.measure(Span.TARGET):
            logits, features = self._session.verify(cohort.rows, inputs)
        by_request = features.reshape(-1, len(requests), *features.shape[1:])  # [g, n, T, D]
        outcomes: dict[int, Outcome] = {}
        with self._stopwatch.measure(Span.ACCEPT):
            for i, (request, span) in enumerate(zip(requests, spans, strict=True)):
                of_tree = logits[i, span.chain : span.chain + span.tree]
                nodes, residual = _judged(request, of_tree, self._codebook)
                root = _draw(residual, request)
                kept = span.kept(nodes)
                outcomes[request.index] = Verified(nodes, root, kept, by_request[:, i, kept])
        return outcomes

    def _commit(self, active: list[Request], outcomes: dict[int, Outcome]) -> None:
        """Keep the target's rows of what was verified, and move every request on."""
        verified = [
            (request, outcome)
            for request in active
            if isinstance(outcome := outcomes[request.index], Verified)
        ]
        # The last rows of a finished image are not kept: nothing will look at them.
        kept = [
            outcome.rows[:0] if request.completes_with(outcome) else outcome.rows
            for request, outcome in verified
        ]
        if any(rows.size for rows in kept):
            cohort = self._cohort([request for request, _ in verified])
            with self._stopwatch.measure(Span.COMMIT):
                self._session.commit(cohort.rows, kept, cohort.target_rows)
        for request in active:
            request.advance(outcomes[request.index])

    def _event(self, records: list[StepRecord], times: StepTimes) -> StepEvent:
        known = tuple(min(len(request.known), request.image_tokens) for request in self._requests)
        return StepEvent(known, tuple(records), times)


def _record(request: Request, outcome: Outcome) -> StepRecord:
    return StepRecord(request.index, request.progress.steps, request.tree, outcome, request.uniforms.used)


def _first_root(logits: Float32Array, request: Request) -> int:
    sampling = request.config.sampling
    if request.noise is not None:
        return couple(logits, sampling, request.noise.row(0))
    return _draw(process(logits, sampling), request)


def _judged(request: Request, logits: Float32Array, codebook: Codebook) -> Verdict:
    """Walk down a request's tree, by its noise or by its stream of numbers."""
    rule, tree, sampling, noise = (
        request.config.acceptance,
        request.tree,
        request.config.sampling,
        request.noise,
    )
    if noise is None:
        return walk(rule, tree, logits, sampling, codebook, request.uniforms)
    first = len(request.known)
    return walk_coupled(rule, tree, logits, sampling, codebook, lambda depth: noise.row(first + depth))


def _draw(distribution: Float64Array, request: Request) -> int:
    """Draw the next root. At temperature 0, and by noise, it is drawn already, and no number is consumed."""
    if request.config.sampling.greedy or request.noise is not None:
        return int(distribution.argmax())
    return sample(distribution, request.uniforms.next())
