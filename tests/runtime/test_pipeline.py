from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from vvs.errors import BackendError, CancelledError, PromptError, SettingsError
from vvs.runtime.pipeline import Pipeline
from vvs.statistics import Span, StepKind

PROMPTS = ["a red dress", "blue shirt", "green shoe"]


@pytest.fixture(scope="module")
def pipeline(tiny_bundle: Path) -> Pipeline:
    return Pipeline.from_bundle(tiny_bundle, threads=1)


def test_generates_pictures_with_statistics(pipeline: Pipeline) -> None:
    generation = pipeline.generate(PROMPTS, seeds=[3, 4, 5])
    assert generation.pixels.shape == (3, 12, 12, 3)
    assert generation.pixels.dtype == np.uint8
    assert generation.tokens.shape == (3, 36)
    assert [image.prompt for image in generation.images] == PROMPTS
    for statistics in generation.statistics:
        assert statistics.skips > 0
        assert statistics.forward_passes < 36
        assert statistics.seconds[Span.DECODE] > 0


@pytest.mark.parametrize("mode", ["ar", "eagle", "vvs"])
def test_a_batch_is_what_its_requests_are_alone(pipeline: Pipeline, mode: str) -> None:
    together = pipeline.generate(PROMPTS, mode, [3, 4, 5])
    in_two = pipeline.generate(PROMPTS, mode, [3, 4, 5], batch=2)
    np.testing.assert_array_equal(in_two.tokens, together.tokens)
    for i, prompt in enumerate(PROMPTS):
        alone = pipeline.generate(prompt, mode, 3 + i)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[i])
        np.testing.assert_array_equal(alone.pixels[0], together.pixels[i])


def test_modes_may_be_mixed_in_one_batch(pipeline: Pipeline) -> None:
    modes = ["ar", "vvs", "eagle"]
    mixed = pipeline.generate(PROMPTS, modes, [3, 4, 5])
    for i, (prompt, mode) in enumerate(zip(PROMPTS, modes, strict=True)):
        np.testing.assert_array_equal(mixed.tokens[i], pipeline.generate(prompt, mode, 3 + i).tokens[0])


def test_what_drafting_is_guided_by_changes_no_exact_greedy_picture(pipeline: Pipeline) -> None:
    """But it changes what is drafted, and how much of it is accepted."""
    ar = pipeline.generate(PROMPTS, pipeline.configure("ar", temperature=0))
    passes = set()
    for ratio in (0.0, 1.0, 3.0):
        config = pipeline.configure("eagle", temperature=0, draft_cfg_ratio=ratio)
        eagle = pipeline.generate(PROMPTS, config)
        np.testing.assert_array_equal(eagle.tokens, ar.tokens)
        passes.add(tuple(one.forward_passes for one in eagle.statistics))
    assert len(passes) > 1


def test_threads_share_a_pipeline(pipeline: Pipeline) -> None:
    def draw(seed: int) -> np.ndarray:
        return pipeline.generate(PROMPTS[:2], None, seed).pixels

    sequentially = [draw(seed) for seed in range(4)]
    with ThreadPoolExecutor(2) as threads:
        at_once = list(threads.map(draw, range(4)))
    np.testing.assert_array_equal(at_once, sequentially)


def test_mapped_weights_give_the_same_pictures(pipeline: Pipeline, tiny_bundle: Path) -> None:
    """Graphs are not rewritten then, so sums may differ in their last bits, but not what is drawn."""
    mapped = Pipeline.from_bundle(tiny_bundle, threads=1, mapped=True)
    expected, found = (each.generate(PROMPTS[:2], "vvs", [3, 4]).tokens for each in (pipeline, mapped))
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(SettingsError, match="mapped is 1, but it must be true or false"):
        Pipeline.from_bundle(tiny_bundle, mapped=1)


def test_streams_tokens_and_previews(pipeline: Pipeline) -> None:
    known: list[tuple[int, ...]] = []
    finished = []
    for progress in pipeline.stream(PROMPTS[:2], "vvs", [3, 4]):
        known.append(progress.known)
        finished += progress.finished
        assert [progress.tokens(i).size for i in range(2)] == list(progress.known)
        assert set(progress.kinds) <= {None, StepKind.VERIFY, StepKind.SKIP}
        if len(known) == 4:
            early = progress
    assert known == sorted(known)
    assert known[-1] == (36, 36)
    # What was known early on stands in the finished picture, and the preview of a picture is the picture.
    assert 0 < early.known[0] < 36
    np.testing.assert_array_equal(early.tokens(0), finished[0].tokens[: early.known[0]])
    assert early.preview(0).shape == (12, 12, 3)
    np.testing.assert_array_equal(progress.preview(1), finished[1].pixels)


def test_a_run_can_be_cancelled_or_closed(pipeline: Pipeline) -> None:
    expected = pipeline.generate(PROMPTS[0], "vvs", 3).tokens
    cancel = Event()
    steps = pipeline.stream(PROMPTS, "vvs", cancel=cancel)
    next(steps)
    cancel.set()
    with pytest.raises(CancelledError):
        next(steps)
    steps = pipeline.stream(PROMPTS, "vvs")
    next(steps)
    steps.close()
    np.testing.assert_array_equal(pipeline.generate(PROMPTS[0], "vvs", 3).tokens, expected)


def test_a_failed_run_leaves_the_pipeline_as_it_was(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vvs.runtime.onnxruntime_session import OnnxRuntimeSession

    expected = pipeline.generate(PROMPTS[0], "vvs", 3).tokens

    def fail(*arguments: object) -> None:
        raise BackendError("the graph 'target' failed: out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(OnnxRuntimeSession, "commit", fail)
        with pytest.raises(BackendError, match="out of memory"):
            pipeline.generate(PROMPTS)
    np.testing.assert_array_equal(pipeline.generate(PROMPTS[0], "vvs", 3).tokens, expected)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"prompts": []}, SettingsError, "no prompts"),
        ({"prompts": [""]}, PromptError, "prompted with words"),
        ({"prompts": [3]}, PromptError, "prompted with words"),
        ({"prompts": ["a purple dress"]}, PromptError, "word 'purple' .* its 7 words are a, blue, dress"),
        ({"prompts": ["a a a a a a a"]}, PromptError, "has 7 words, but this model takes at most 6"),
        ({"prompts": ["red"], "seeds": [1, 2]}, SettingsError, "2 seeds are given for 1 prompts"),
        ({"prompts": ["red"], "seeds": -1}, SettingsError, "seed is -1"),
        ({"prompts": ["red"], "settings": ["ar", "ar"]}, SettingsError, "2 settings are given for 1 prompts"),
        ({"prompts": ["red"], "settings": "faster"}, SettingsError, "unknown mode 'faster'"),
        ({"prompts": ["red"], "batch": 5}, SettingsError, "batch is 5, but .* at most 4"),
        ({"prompts": ["red"], "batch": 0}, SettingsError, "batch is 0"),
    ],
)
def test_bad_requests_are_sentences_at_once(
    pipeline: Pipeline, arguments: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        pipeline.stream(**arguments)  # type: ignore[arg-type]


def test_recommendations_never_turn_one_mode_into_another(pipeline: Pipeline) -> None:
    described = {mode: pipeline.configure(mode).describe() for mode in ("ar", "eagle", "lantern", "vvs")}
    assert described["eagle"]["acceptance"] == "exact"
    assert described["lantern"]["acceptance"] == described["vvs"]["acceptance"] == "lantern:k=16,delta=0.3"
    assert described["ar"]["tree"] is None
    assert {settings["cfg_scale"] for settings in described.values()} == {2.0}
    assert pipeline.configure().describe() == described["vvs"]
    assert pipeline.configure("vvs", policy="never", cfg_scale=None).describe()["skipping"] == "never"


NO_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("vvs.export"):
            raise ImportError("refused: " + name)
sys.meta_path.insert(0, Refuse())
from vvs.runtime.pipeline import Pipeline
pixels = Pipeline.from_bundle(sys.argv[1], threads=1).generate("a red dress", "vvs", 3).pixels
assert pixels.shape == (1, 12, 12, 3)
assert not [name for name in sys.modules if name == "torch" or name.startswith("vvs.export")]
"""


def test_generates_without_torch(tiny_bundle: Path) -> None:
    subprocess.run([sys.executable, "-c", NO_TORCH, str(tiny_bundle)], check=True, timeout=120)
