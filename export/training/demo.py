"""The demo model: its sizes, its parts, and how each is trained and judged.

Every part starts from the weights of the parts before it, so a stage can be trained again alone.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F  # noqa: N812

from vvs.export.drafter import Drafter, DrafterConfig
from vvs.export.llamagen import Target, TargetConfig, WordConditioning, published_ffn_width
from vvs.export.training.classifier import Classifier
from vvs.export.training.classifier_stage import ClassifierStage
from vvs.export.training.drafter_stage import DrafterStage, FeatureMix
from vvs.export.training.garments import GARMENT_NAMES, IMAGE_SIZE, Garments, load_garments, tint, words
from vvs.export.training.target_stage import GarmentExamples, TargetStage
from vvs.export.training.trainer import TrainSettings, train
from vvs.export.training.vocabulary import build_tokenizer
from vvs.export.training.vq_stage import VQStage
from vvs.export.training.weights import load_weights, save_weights
from vvs.export.vq import VQConfig, VQTokenizer
from vvs.geometry import Geometry
from vvs.runtime.whole_file import write_json

CODES = 512
CODE_DIM = 8
CAPTION_DIM = 128
SPECIAL_WORDS = 2  # padding and unknown
CFG_SCALE = 2.0
"""Guidance that the drafter is trained for, the recipe's default."""
GEOMETRY = Geometry(
    grid=16,
    vocabulary=CODES,
    code_dim=CODE_DIM,
    prompt_length=8,
    layers=8,
    heads=4,
    head_dim=64,
    hidden=256,
    guidance_rows=2,
    image_size=IMAGE_SIZE,
)
EVALUATION_BATCHES = 20
EVALUATION_SEED = 1_000_003


@dataclass(frozen=True)
class DemoSettings:
    """How each stage is trained, and how a drafter sees stale features."""

    vq: TrainSettings
    target: TrainSettings
    drafter: TrainSettings
    classifier: TrainSettings
    mix: FeatureMix
    compile: bool = True
    """Let torch.compile fuse the target's layers; needs a C++ compiler."""
    from_weights: bool = False
    """Without a training state, let target and drafter go on from the finished weights and their step."""


SETTINGS = DemoSettings(
    vq=TrainSettings(steps=1400, batch=64, learning_rate=1e-3, weight_decay=0.0, beta2=0.99),
    target=TrainSettings(steps=5300, batch=32, learning_rate=1.5e-3, warmup=200),
    drafter=TrainSettings(steps=7000, batch=12, learning_rate=1.5e-3),
    classifier=TrainSettings(steps=1500, batch=128, learning_rate=2e-3),
    # Skipped steps emit about half of the tokens, and their drafter rows are built on stale features.
    mix=FeatureMix(predicted=0.2, stale=0.4),
)


def new_vq() -> VQTokenizer:
    """The demo's image tokenizer: 2 pixels a token along each side."""
    return VQTokenizer(VQConfig(CODES, CODE_DIM, channels=32, channel_multipliers=(1, 2), latent_channels=64))


def new_target() -> Target:
    """The demo's target, freshly initialised."""
    conditioning = WordConditioning(len(words()) + SPECIAL_WORDS, CAPTION_DIM)
    target = Target(TargetConfig(GEOMETRY, conditioning, published_ffn_width(GEOMETRY.hidden)))
    target.initialise()
    return target


def new_drafter() -> Drafter:
    """The demo's drafter."""
    return Drafter(DrafterConfig(GEOMETRY, published_ffn_width(GEOMETRY.hidden)))


class DemoTraining:
    """Trains the parts in order, keeps their states in ``runs`` and their weights in ``weights``."""

    def __init__(self, settings: DemoSettings, runs: Path, weights: Path, console: Console) -> None:
        self.settings = settings
        self.runs = runs
        self.weights = weights
        self.console = console
        self.tokenizer: Tokenizer = build_tokenizer(GEOMETRY.prompt_length)

    def stages(self) -> dict[str, Callable[[], dict[str, float]]]:
        """Every stage by name, in order; each trains its part, saves it and returns held-out figures."""
        return {
            "vq": self.train_vq,
            "target": self.train_target,
            "drafter": self.train_drafter,
            "classifier": self.train_classifier,
        }

    def run(self, names: list[str]) -> None:
        """Train the named stages and record their held-out figures in ``training.json``."""
        self.weights.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(str(self.weights / "tokenizer.json"))
        report, figures = self._report, self._figures()
        for name in names:
            torch.manual_seed(0)
            steps: int = getattr(self.settings, name).steps
            figures[name] = {"steps": steps} | self.stages()[name]()
            shown = ", ".join(f"{key} {value:.4g}" for key, value in figures[name].items())
            self.console.print(f"{name}: held out: {shown}", highlight=False)
            write_json(report, figures)

    @property
    def _report(self) -> Path:
        return self.weights / "training.json"

    def _figures(self) -> dict[str, dict[str, float]]:
        """Held-out figures of the finished stages, and the steps each was trained for."""
        figures: dict[str, dict[str, float]] = (
            json.loads(self._report.read_text()) if self._report.is_file() else {}
        )
        return figures

    def _go_on(self, module: nn.Module, name: str) -> int:
        """The step at which training starts: 0, or where the finished weights were left, which are loaded."""
        if not self.settings.from_weights:
            return 0
        load_weights(module, self._path(name))
        return int(self._figures()[name]["steps"])

    def _path(self, name: str) -> Path:
        return self.weights / f"{name}.safetensors"

    def _source(self, split: str) -> GarmentExamples:
        vq = new_vq()
        load_weights(vq, self._path("vq"))
        return GarmentExamples(load_garments(split), vq, self.tokenizer, GEOMETRY.prompt_length)

    def train_vq(self) -> dict[str, float]:
        """Train the image tokenizer; held out: mean PSNR in dB over test pictures, share of codes in use."""
        vq = new_vq()
        train(VQStage(vq, load_garments("train")), self.settings.vq, self.runs, self.console)
        save_weights(vq, self._path("vq"))
        load_weights(vq, self._path("vq"))
        return _judge_vq(vq, load_garments("test"))

    def train_target(self) -> dict[str, float]:
        """Train the target; held out: nats a token on test pictures."""
        target = new_target()
        start = self._go_on(target, "target")
        if self.settings.compile:
            for layer in target.model.layers:
                setattr(layer, "whole_sequence", torch.compile(getattr(layer, "whole_sequence")))  # noqa: B009, B010
        stage = TargetStage(target, self._source("train"))
        train(stage, self.settings.target, self.runs, self.console, start)
        save_weights(target, self._path("target"))
        return self._judge_target()

    @torch.no_grad()
    def _judge_target(self) -> dict[str, float]:
        target = new_target()
        load_weights(target, self._path("target"))
        source, rng = self._source("test"), np.random.default_rng(EVALUATION_SEED)
        stage, kept = TargetStage(target.eval(), source), torch.zeros(64, dtype=torch.bool)
        losses = [
            float(stage.negative_log_likelihood(source.draw(64, rng), kept))
            for _ in range(EVALUATION_BATCHES)
        ]
        return {"nats_per_token": float(np.mean(losses))}

    def train_drafter(self) -> dict[str, float]:
        """Train the drafter; held out: its losses and top-1 agreement with the target."""
        target, drafter = new_target(), new_drafter()
        load_weights(target, self._path("target"))
        drafter.embed_tokens.weight.data.copy_(target.model.embed_tokens.weight.data)
        start = self._go_on(drafter, "drafter")
        stage = DrafterStage(drafter, target, self._source("train"), self.settings.mix, CFG_SCALE)
        train(stage, self.settings.drafter, self.runs, self.console, start)
        save_weights(drafter, self._path("drafter"))
        judged = DrafterStage(drafter, target, self._source("test"), self.settings.mix, CFG_SCALE)
        return _mean_losses(judged)

    def train_classifier(self) -> dict[str, float]:
        """Train the judge; held out: share of test pictures whose colour and garment it names."""
        classifier = Classifier()
        stage = ClassifierStage(classifier, load_garments("train"))
        train(stage, self.settings.classifier, self.runs, self.console)
        save_weights(classifier, self._path("classifier"))
        load_weights(classifier, self._path("classifier"))
        return _judge_classifier(classifier.eval(), load_garments("test"))


@torch.no_grad()
def _mean_losses(stage: DrafterStage) -> dict[str, float]:
    rng = np.random.default_rng(EVALUATION_SEED)
    rows = [stage.losses(32, rng) for _ in range(EVALUATION_BATCHES)]
    return {name: float(np.mean([float(row[name]) for row in rows])) for name in rows[0]}


def _held_out_pictures(data: Garments, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pixels, colours and garments of the first ``count`` test pictures, each in a random colour."""
    colours = torch.from_numpy(np.random.default_rng(EVALUATION_SEED).integers(12, size=count))
    return tint(data.grey[:count], colours), colours, data.labels[:count]


@torch.no_grad()
def _judge_vq(vq: VQTokenizer, data: Garments) -> dict[str, float]:
    pixels, _, _ = _held_out_pictures(data, 1000)
    ids = torch.cat([vq.encode(chunk) for chunk in torch.split(pixels, 100)])
    decoded = torch.cat([vq.decode(chunk).clamp(-1, 1) for chunk in torch.split(ids, 100)])
    error = F.mse_loss(decoded, pixels, reduction="none").mean(dim=(1, 2, 3))
    psnr = 10 * torch.log10(4 / error)
    return {"psnr_db": float(psnr.mean()), "codes_used": len(torch.unique(ids)) / vq.config.codes}


@torch.no_grad()
def _judge_classifier(classifier: Classifier, data: Garments) -> dict[str, float]:
    pixels, colours, garments = _held_out_pictures(data, len(data))
    verdicts = [classifier(chunk) for chunk in torch.split(pixels, 500)]
    colour_right = torch.cat([v.colours.argmax(-1) for v in verdicts]) == colours
    garment_right = torch.cat([v.garments.argmax(-1) for v in verdicts]) == garments
    figures = {
        "colour": float(colour_right.float().mean()),
        "garment": float(garment_right.float().mean()),
        "both": float((colour_right & garment_right).float().mean()),
    }
    for i, name in enumerate(GARMENT_NAMES):
        figures[f"garment_{name}"] = float(garment_right[garments == i].float().mean())
    return figures
