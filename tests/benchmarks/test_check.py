"""``vvs check``: greedy runs agree, and where they do not it is said why."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from vvs.benchmarks.agreement import Comparison, compare_greedy
from vvs.benchmarks.divergence import Divergence, explain, first_difference, logits_after
from vvs.cli.app import app
from vvs.config import GenerationConfig
from vvs.decoding import Decoder, Generation
from vvs.engine import Conditioning
from vvs.runtime.backends import open_engine
from vvs.runtime.bundle import Bundle
from vvs.runtime.pipeline import Pipeline
from vvs.runtime.prompts import encode
from vvs.step import StepEvent
from vvs.uniforms import Uniforms

Vvs = Callable[..., Result]


@pytest.fixture
def vvs() -> Vvs:
    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


def test_drafting_and_backends_do_not_change_greedy_pictures(
    vvs: Vvs, tiny_bundle: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    found = tmp_path / "check.json"
    result = vvs("check", tiny_bundle, "--recipe", tiny_recipe, "--json", found, "--prompt", "a red dress")
    assert result.exit_code == 0, result.output
    comparisons = json.loads(found.read_text())
    assert [(c["ours"], c["theirs"]) for c in comparisons] == [
        ("onnxruntime, tiny", "onnxruntime, AR"),
        ("eager PyTorch, tiny", "eager PyTorch, AR"),
        ("eager PyTorch, AR", "onnxruntime, AR"),
    ]
    assert all(c["pictures"] == 1 and not c["wrong"] for c in comparisons)


def test_a_backend_that_decides_on_a_device_is_compared_too(
    vvs: Vvs, tiny_bundle: Path, tmp_path: Path
) -> None:
    found = tmp_path / "check.json"
    backends = ("--backend", "onnxruntime", "--backend", "cuda-on-host")
    result = vvs("check", tiny_bundle, *backends, "--json", found)
    assert result.exit_code == 0, result.output
    comparisons = json.loads(found.read_text())
    assert ("cuda-on-host, AR", "onnxruntime, AR") in [(c["ours"], c["theirs"]) for c in comparisons]
    assert len(comparisons) == 3


def test_a_loop_that_decodes_something_else_is_found(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    engine = open_engine(bundle)
    honest = Decoder(engine, bundle.codebook)

    class Forgetful(Decoder):
        """Draws every picture with other guidance than was asked for."""

        def run(
            self,
            conditioning: Conditioning,
            configs: Sequence[GenerationConfig],
            streams: Sequence[Uniforms],
        ) -> Generator[StepEvent, None, Generation]:
            changed = [replace(config, cfg_scale=config.cfg_scale + 4) for config in configs]
            return super().run(conditioning, changed, streams)

    loops = {"honest": honest, "forgetful": Forgetful(engine, bundle.codebook)}
    found = compare_greedy(bundle, loops, lambda: engine, ["a red dress"], ["tiny"], 1.0)
    assert [(c.ours, c.equal, c.wrong) for c in found] == [
        ("honest, tiny", 1, False),
        ("forgetful, tiny", 1, False),
        ("forgetful, AR", 0, True),
    ]


def test_a_difference_that_is_no_tie_is_found_and_explained(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    engine, pipeline = open_engine(bundle), Pipeline.from_bundle(tiny_bundle)
    conditioning = encode(bundle, ["a red dress"])
    greedy = pipeline.configure("ar", temperature=0.0, cfg_scale=2.0)
    tokens = pipeline.generate(["a red dress"], greedy).tokens[0]
    for position in (0, 7):
        # The logits after the common tokens are those that the greedy run chose by.
        logits = logits_after(engine, conditioning, tokens[:position].tolist(), 2.0)
        assert int(logits.argmax()) == tokens[position]
        other = tokens.copy()
        other[position] = int(logits.argmin())
        found = explain(engine, conditioning, tokens, other, 2.0, "fp32")
        assert found is not None
        assert (found.position, found.ours, found.theirs) == (position, tokens[position], other[position])
        assert found.gap == pytest.approx(logits.max() - logits.min(), rel=1e-3)
        assert not found.tie
    assert explain(engine, conditioning, tokens, tokens, 2.0, "fp32") is None


def test_a_wrong_run_fails_the_check(vvs: Vvs, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Divergence(5, 1, 2, 0.7, 3.0, tie=False)
    tie = Divergence(3, 4, 5, 1e-6, 3.0, tie=True)
    comparison = Comparison("x, oak", "x, AR", 3, (tie, wrong))
    assert comparison.equal == 1
    assert "token 5: 1 or 2, logit gap 0.7 of 3: NO tie" in comparison.sentence
    assert not Comparison("x", "y", 3, (tie,)).wrong
    monkeypatch.setattr("vvs.benchmarks.agreement.compare_greedy", lambda *_: [comparison])
    result = vvs("check", tiny_bundle)
    assert result.exit_code == 1
    assert "NO tie" in " ".join(result.output.split())


def test_first_differences() -> None:
    assert first_difference(np.array([1, 2, 3]), np.array([1, 2, 3])) is None
    assert first_difference(np.array([1, 2, 3]), np.array([1, 5, 4])) == 1


def test_what_cannot_be_checked(vvs: Vvs, tiny_bundle: Path, tmp_path: Path) -> None:
    assert "unknown tree 'oak'; there is tiny" in vvs("check", tiny_bundle, "--tree", "oak").stderr
    assert "unknown backend 'warp'" in vvs("check", tiny_bundle, "--backend", "warp").stderr
    assert "there is no recipe" in vvs("check", tiny_bundle, "--recipe", tmp_path / "r.toml").stderr
