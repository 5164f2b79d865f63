"""GpuParity: what a way of running a bundle draws, against the CPU, recordings, and plain launches."""

import logging
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vvs.arrays import IntArray
from vvs.benchmarks.agreement import compare_greedy
from vvs.benchmarks.gpu_report import Finding, NotHereError
from vvs.benchmarks.gpu_ways import REQUESTS, Models, Way
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.decoding import Decoder, Loop, finish
from vvs.runtime.backends import open_engine
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.loop import DeviceLoop
from vvs.runtime.pipeline import Pipeline
from vvs.runtime.prompts import encode
from vvs.runtime.settings import resolve
from vvs.uniforms import RecordedUniforms, UniformStream

SAMPLED_MODES = ("ar", "eagle", "lantern", "vvs")
REPEATS = 3
SEED = 0


@dataclass(frozen=True)
class Subject:
    """The bundle that is drawn with."""

    bundle: Bundle
    models: Models
    prompts: tuple[str, ...]

    @property
    def tree(self) -> str:
        """The draft tree of all checks."""
        return self.bundle.manifest.default_tree

    def config(self, mode: str) -> GenerationConfig:
        """A mode as the bundle recommends it, on that tree."""
        return replace(resolve(self.bundle.manifest, mode), skip_tree=None)


def against_the_cpu(way: Way, subject: Subject) -> Finding:
    """Greedy decoding must be the CPU's but for ties; sampled pictures that are the same are counted.

    A sampled picture may differ from the first token on whose draw falls between two sums of almost the same
    probabilities, so that says nothing by itself.
    """
    bundle, prompts = subject.bundle, subject.prompts
    host = Decoder(open_engine(bundle), bundle.codebook)
    judge = cache(lambda: open_engine(bundle))
    scale = subject.config("ar").cfg_scale
    with way.loop(bundle, subject.models) as loop:
        loops: dict[str, Loop] = {"onnxruntime": host, way.name: loop}
        compared = compare_greedy(bundle, loops, judge, prompts[:1], [subject.tree], scale)
        equal = {
            mode: _same_pictures(Pipeline(bundle, host), Pipeline(bundle, loop), subject, mode)
            for mode in SAMPLED_MODES
        }
    wrong = [each for each in compared if each.wrong]
    pictures = f"{sum(equal.values())} of {len(equal) * len(prompts)} sampled pictures are the CPU's too"
    remark = wrong[0].sentence if wrong else f"greedy decoding is the CPU's, ties apart; {pictures}"
    figures = {"greedy": [each.to_dict() for each in compared], "equal_sampled": equal}
    return Finding(not wrong, remark, figures)


def _same_pictures(ours: Pipeline, theirs: Pipeline, subject: Subject, mode: str) -> int:
    prompts, config = subject.prompts, subject.config(mode)
    a, b = (pipeline.generate(prompts, config, SEED).tokens for pipeline in (ours, theirs))
    return int((a == b).all(axis=1).sum())


def against_recordings(way: Way, folder: Path) -> Finding:
    """Recorded runs of the published implementation must come out token for token.

    Runs with a nucleus are left out: their draft trees hold tied nodes, which no two runtimes order alike.
    """
    if not folder.is_dir():
        raise NotHereError(f"there are no recordings at {folder}")
    try:
        from vvs.benchmarks.recording import Recording
        from vvs.benchmarks.replay import PUBLISHED_DEPTH, PUBLISHED_K, model_set
        from vvs.export.bundle import export_bundle
    except ImportError as error:
        raise NotHereError(
            f"recordings are replayed on models in PyTorch, which is missing ({error})"
        ) from error
    recording = Recording.read(folder)
    traces = [trace for trace in recording.traces if trace.settings["top_p"] == 1]
    neighbours = max(trace.settings["lantern_k"] for trace in recording.traces)
    codebook = Codebook.from_latents(recording.codebook, neighbours + 1)
    models = model_set(recording, PUBLISHED_K, PUBLISHED_DEPTH)
    with tempfile.TemporaryDirectory() as temporary:
        export_bundle(models, Path(temporary) / "recording")
        bundle = Bundle.open(Path(temporary) / "recording")
        with way.opened(bundle, lambda: models) as (device, engines):
            loop = DeviceLoop(device, engines, bundle, codebook, graphs=way.captures)
            equal = {}
            for trace in traces:
                conditioning = {
                    "hidden_states": trace.arrays["caption"].astype(np.float32),
                    "mask": trace.arrays["caption_mask"] > 0,
                }
                config = trace.config(bundle.manifest.default_tree)
                run = loop.run(conditioning, [config], [RecordedUniforms(trace.arrays["uniforms"])])
                equal[trace.file] = int((finish(run).tokens[0] == trace.arrays["tokens"]).sum())
            loop.release()
    tokens = len(traces[0].arrays["tokens"])
    right = sum(count == tokens for count in equal.values())
    return Finding(
        right == len(traces),
        f"{right} of {len(traces)} recorded runs came out token for token",
        {"equal_tokens": equal, "tokens": tokens},
    )


class Form(NamedTuple):
    """A form of the loop that must draw what others draw."""

    name: str
    phrase: str
    options: Mapping[str, bool]
    """Of :meth:`Way.loop`."""


PLAIN = Form("plain", "plain launches", {"graphs": False})
GRAPHS = Form("graphs", "replayed graphs", {})
WHOLE = Form("whole", "one graph for the image", {"whole_image": True})


def graphs_against_launches(way: Way, subject: Subject, *, timed: bool) -> Finding:
    """Replayed graphs must draw what plain launches draw; the ratio of their times, side by side."""
    return _side_by_side(way, subject, GRAPHS, PLAIN, timed=timed)


def image_against_steps(way: Way, subject: Subject, *, timed: bool) -> Finding:
    """One graph for a whole image must draw what one for each step draws; the ratio of their times."""
    _require_captures(way)
    with way.opened(subject.bundle, subject.models) as (device, _):
        reason = device.why_no_flows()
    if reason:
        raise NotHereError(reason)
    return _side_by_side(way, subject, WHOLE, GRAPHS, timed=timed)


def _side_by_side(way: Way, subject: Subject, form: Form, reference: Form, *, timed: bool) -> Finding:
    _require_captures(way)
    bundle, config, prompts = subject.bundle, subject.config("vvs"), subject.prompts[:1]
    tokens: dict[str, IntArray] = {}
    seconds: dict[str, float] = {}
    with _warnings() as said:
        for each in (form, reference):
            with way.loop(bundle, subject.models, **each.options) as loop:
                tokens[each.name], _ = _draw(loop, bundle, prompts, config)  # captures, and warms up
                if timed:
                    drawn = [_draw(loop, bundle, prompts, config)[1] for _ in range(REPEATS)]
                    seconds[each.name] = float(np.median(drawn))
    if said:
        return Finding(False, f"it did not run as asked for: {said[0]}")
    if not np.array_equal(tokens[form.name], tokens[reference.name]):
        return Finding(False, f"{form.phrase}: other tokens than with {reference.phrase}")
    if not timed:
        return Finding(True, "the same tokens")
    ratio = seconds[reference.name] / seconds[form.name]
    return Finding(
        True,
        f"the same tokens; {reference.phrase} take {ratio:.2f}x the time of {form.phrase}",
        {f"{name}_seconds": each for name, each in seconds.items()},
    )


def _require_captures(way: Way) -> None:
    if not way.captures:
        raise NotHereError(f"the engines of {way.name} cannot be part of a graph")


def _draw(
    loop: Loop, bundle: Bundle, prompts: Sequence[str], config: GenerationConfig
) -> tuple[IntArray, float]:
    """One batch's tokens ``[R, grid * grid]``, and the seconds they took."""
    conditioning = encode(bundle, list(prompts[:REQUESTS]))
    streams = [UniformStream(SEED + i) for i in range(len(prompts))]
    started = time.perf_counter()
    tokens = finish(loop.run(conditioning, [config] * len(prompts), streams)).tokens
    return tokens, time.perf_counter() - started


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the device loop warns of meanwhile."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vvs.device")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
