"""DeviceLoop: the draft / skip / verify loop with its decisions on a device, written once for every device.

The kernels decide, as :mod:`vvs.decoding` does on the host and token for token the same. The host queues the
beats of a step and waits once in it, for the decision; what the step before came to is read with it. So a
step is told when the next one has been decided, except near the end, where the host looks whether the image
is complete. Where it is asked for, the host queues all steps at once as one graph and waits for the image
(:mod:`vvs.runtime.device.whole_image`); then every step is told at its end.
"""

from collections.abc import Generator, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import Float32Array, IntArray
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.decoding import Generation, check_batch
from vvs.engine import Conditioning
from vvs.errors import BackendError, SettingsError
from vvs.geometry import Geometry
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.images import ImageDecoder
from vvs.runtime.device.interface import Device, EngineSet
from vvs.runtime.device.news import DeviceNews, DeviceStep
from vvs.runtime.device.run_plan import RunShape
from vvs.runtime.device.session import DeviceSession, Seen
from vvs.runtime.device.step_trees import TreeNames
from vvs.runtime.device.whole_image import WholeImageUse
from vvs.runtime.kernels.state import Counter, Decision, Phase, encode_settings
from vvs.statistics import Span, Statistics, StepTimes, Stopwatch
from vvs.uniforms import Uniforms


class DeviceLoop:
    """Answers :class:`vvs.decoding.Loop`.

    Args:
        device: where decisions are taken.
        engines: the bundle's engines on it.
        bundle: what to run.
        codebook: of the bundle's image tokenizer.
        graphs: whether steps are captured once and replayed.
        whole_image: whether the images of a batch are decoded as one graph, where that is possible, with one
            warning where it is not. Steps are then told, and a run can be closed, only once it is done.

    Raises:
        SettingsError: whole images without graphs.

    """

    def __init__(
        self,
        device: Device,
        engines: EngineSet,
        bundle: Bundle,
        codebook: Codebook,
        *,
        graphs: bool = True,
        whole_image: bool = False,
    ) -> None:
        if whole_image and not graphs:
            raise SettingsError(
                "whole_image_graph is set but cuda_graphs is not; the graph of an image is made of captured "
                "steps, so set both or neither"
            )
        self._device = device
        self._engines = engines
        self._bundle = bundle
        self._codebook = codebook
        self._graphs = graphs
        self._whole_image = WholeImageUse(device, wanted=whole_image)
        self._keeping = Lock()
        # The session closed last: most runs follow one of its shape and find its memory and graphs ready.
        self._idle: DeviceSession | None = None
        self._images: ImageDecoder | None = None

    @property
    def geometry(self) -> Geometry:
        """Sizes of the models."""
        return self._bundle.manifest.geometry

    def run(
        self,
        conditioning: Conditioning,
        configs: Sequence[GenerationConfig],
        streams: Sequence[Uniforms],
    ) -> Generator[DeviceNews, None, Generation]:
        """Decode one image per request; see :meth:`vvs.decoding.Loop.run`.

        Raises:
            SettingsError: at once, if something does not fit, or no kernel knows a rule, policy or selector.

        """
        return self._run(self._shape(conditioning, configs, streams), conditioning, configs, streams)

    def warm_up(
        self,
        conditioning: Conditioning,
        configs: Sequence[GenerationConfig],
        streams: Sequence[Uniforms],
    ) -> None:
        """Take the memory of a batch and capture every kind of step that it can have, or its whole graph."""
        shape = self._shape(conditioning, configs, streams)
        self._device.use()
        session = self._open(shape)
        try:
            session.begin(conditioning, configs, streams)
            self._capture(session)
        except BaseException:
            self._give_up(session, keep=False)
            raise
        self._keep(session)

    def _capture(self, session: DeviceSession) -> None:
        if self._whole_image.usable:
            session.capture_image()
            with self._whole_image.attempt():
                session.image_graph()
                return
        session.capture_all()

    def decode_image(self, tokens: IntArray) -> Float32Array:
        """Turn complete token grids ``[R, grid * grid]`` into images ``[R, 3, H, W]`` in [-1, 1]."""
        expected = self.geometry.image_tokens
        if tokens.ndim != 2 or tokens.shape[1] != expected:
            raise SettingsError(f"token grids have shape {tokens.shape}, but must be [R, {expected}]")
        self._device.use()
        with self._keeping:
            if self._images is None:
                self._images = ImageDecoder(self._device, self._engines, self._bundle.manifest)
        return self._images.decode(tokens)

    def release(self) -> None:
        """Give back the memory that is kept for the next run, which will take and capture everything anew."""
        with self._keeping:
            idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()

    def close(self) -> None:
        """Give the device back; no run may be under way."""
        self.release()
        if self._images is not None:
            self._images.close()
        self._device.close()

    def _shape(
        self,
        conditioning: Conditioning,
        configs: Sequence[GenerationConfig],
        streams: Sequence[Uniforms],
    ) -> RunShape:
        """Check a batch and say what memory it needs."""
        manifest = self._bundle.manifest
        check_batch(manifest.trees, self._codebook, conditioning, configs, streams)
        if len(configs) > manifest.max_requests:
            raise SettingsError(
                f"a batch of {len(configs)} requests was asked for, "
                f"but this bundle takes 1..{manifest.max_requests}"
            )
        shape = RunShape.of(manifest, configs)
        encode_settings(configs, shape.trees)
        return shape

    def _run(
        self,
        shape: RunShape,
        conditioning: Conditioning,
        configs: Sequence[GenerationConfig],
        streams: Sequence[Uniforms],
    ) -> Generator[DeviceNews, None, Generation]:
        self._device.use()
        session = self._open(shape)
        try:
            run = _Run(session, self.geometry.image_tokens)
            yield run.begin(conditioning, configs, streams)
            if self._whole_image.usable and not run.complete:
                self._device.use()
                yield from run.decode(self._whole_image)
            while not run.complete:
                self._device.use()  # the caller may have moved on to another thread
                yield from run.step()
            finished = run.finish()
        except BaseException as error:
            # Whatever the memory holds now: the next run starts on memory of its own.
            self._give_up(session, keep=isinstance(error, GeneratorExit))
            raise
        self._keep(session)
        return finished

    def _open(self, shape: RunShape) -> DeviceSession:
        with self._keeping:
            idle, self._idle = self._idle, None
        if idle is not None:
            if idle.shape == shape:
                return idle
            idle.close()
        return DeviceSession(
            self._device,
            self._engines,
            self._bundle,
            self._codebook,
            shape,
            graphs=self._graphs,
            whole=self._whole_image.usable,
        )

    def _give_up(self, session: DeviceSession, *, keep: bool) -> None:
        """End a session early: one that was only closed in mid-run may serve the next run."""
        with suppress(BackendError):
            self._device.use()  # a generator may be closed by any thread
            if keep:
                session.read()
                self._keep(session)
                return
        with suppress(BackendError):
            session.close()

    def _keep(self, session: DeviceSession) -> None:
        with self._keeping:
            older, self._idle = self._idle, session
        if older is not None:
            older.close()


class _Run:
    """A batch under way on one session."""

    def __init__(self, session: DeviceSession, image_tokens: int) -> None:
        self._session = session
        self._image_tokens = image_tokens
        self._stopwatch = Stopwatch()
        self._seen: Seen
        self._steps = 0
        """Steps that are queued so far."""
        self._decided: NDArray[Any] | None = None
        """What the step under way is for every request, once it is queued."""

    @property
    def complete(self) -> bool:
        """Whether all images are known."""
        return self._seen.complete

    def begin(
        self, conditioning: Conditioning, configs: Sequence[GenerationConfig], streams: Sequence[Uniforms]
    ) -> DeviceNews:
        """Run the prompts."""
        self._stopwatch.resume()
        self.statistics = tuple(Statistics(self._image_tokens) for _ in configs)
        with self._stopwatch.measure(Span.PREFILL):
            self._seen = self._session.begin(conditioning, configs, streams)
        times = self._lap()
        for statistics in self.statistics:
            statistics.count_prefill(times)
        return DeviceNews(self._known(), (), times)

    def step(self) -> Generator[DeviceNews, None, None]:
        """Propose and decide, tell the step before, queue this one; near the end, tell this one too."""
        self._stopwatch.resume()
        with self._stopwatch.measure(Span.DEVICE):
            before, self._seen = self._seen, self._session.propose(self._trees())
        news = self._news(before)
        self._queue()
        if news is not None:
            yield news
        if self._may_complete():
            self._stopwatch.resume()
            with self._stopwatch.measure(Span.DEVICE):
                before, self._seen = self._seen, self._session.read()
            news = self._news(before)
            if news is not None:
                yield news

    def decode(self, use: WholeImageUse) -> Generator[DeviceNews, None, None]:
        """Decode to the end as one graph, then tell every step; nothing where that cannot be done."""
        self._stopwatch.resume()
        with self._stopwatch.measure(Span.DEVICE):
            decoded = self._session.decode(use)
        times = self._lap()
        for statistics in self.statistics:
            statistics.count_unseen(times)
        if decoded is None:
            return
        before, self._seen = self._seen.column(Counter.KNOWN), decoded.seen
        for news in decoded.history.news(before):
            for record in news.records:
                self.statistics[record.request].count_step(record.kind, record.accept, news.times)
            yield news

    def finish(self) -> Generation:
        """The finished batch; surplus tokens of the last steps are dropped."""
        tokens = self._seen.known[:, : self._image_tokens].astype(np.int64)
        return Generation(tokens, self.statistics)

    def _trees(self) -> TreeNames:
        """Trees that the next step drafts; what the step under way emits is known only roughly."""
        fewest = most = self._seen.column(Counter.EMITTED)
        if self._decided is not None:
            verifies, skipped = self._decided == Decision.VERIFY, self._seen.column(Counter.CHOSEN)
            fewest = fewest + np.where(verifies, 1, skipped)
            most = most + np.where(verifies, self._seen.column(Counter.LONGEST), skipped)
        active = self._seen.column(Counter.PHASE) != Phase.COMPLETE
        return self._session.trees.of(self._steps, int(fewest[active].min()), int(most[active].max()))

    def _queue(self) -> None:
        """Queue what was decided."""
        self._steps += 1
        self._decided = self._seen.column(Counter.DECISION)
        if (self._decided == Decision.SKIP).any():
            self._session.skip()
        if (self._decided == Decision.VERIFY).any():
            self._session.verify(chain=bool(self._seen.column(Counter.CHAIN).any()))

    def _may_complete(self) -> bool:
        """Whether this step may be the last: then it is worth waiting for, lest another tree be drafted."""
        reach = self._seen.column(Counter.KNOWN) + self._seen.column(Counter.LONGEST)
        active = self._seen.column(Counter.PHASE) != Phase.COMPLETE
        return bool((reach[active] >= self._image_tokens).all())

    def _news(self, before: Seen) -> DeviceNews | None:
        """What the queued step came to; None before the first, and where it has been told."""
        decided, self._decided = self._decided, None
        if decided is None:
            return None
        times = self._lap()
        records = tuple(
            self._record(request, int(decided[request]), before)
            for request in np.flatnonzero(decided != Decision.IDLE).tolist()
        )
        for record in records:
            self.statistics[record.request].count_step(record.kind, record.accept, times)
        return DeviceNews(self._known(), records, times)

    def _record(self, request: int, decision: int, before: Seen) -> DeviceStep:
        was, now = (int(seen.counters[request, Counter.KNOWN]) for seen in (before, self._seen))
        accept = int(self._seen.counters[request, Counter.TAKEN])
        return DeviceStep.of(request, decision, accept, self._seen.known[request], was, now)

    def _known(self) -> tuple[int, ...]:
        return tuple(np.minimum(self._seen.column(Counter.KNOWN), self._image_tokens).tolist())

    def _lap(self) -> StepTimes:
        """Times since the last lap. Engines run out of sight: waiting for the device is all there is."""
        times = self._stopwatch.lap(0.0)
        return times._replace(engines=times.spans[Span.DEVICE] + times.spans[Span.PREFILL])
