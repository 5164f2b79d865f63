"""Training a drafter for a target of one's own, and what it is worth on prompts it has not seen.

Features are computed by the target step by step and not kept: a 512-pixel picture of LlamaGen-XL would take
2.6 MB of them, a thousand times its tokens.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from vvs.acceptance import Exact
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.decoding import Decoder
from vvs.errors import SettingsError
from vvs.export.checkpoint import sha256_of_tensors
from vvs.export.drafter import Drafter, DrafterConfig
from vvs.export.eager import EagerEngine
from vvs.export.footprint import parameters
from vvs.export.model_set import ModelSet
from vvs.export.survey import without_memory
from vvs.export.training.deepened import deepened
from vvs.export.training.drafter_stage import DrafterStage, FeatureMix
from vvs.export.training.token_examples import TokenExamples
from vvs.export.training.trainer import TrainSettings, train
from vvs.export.training.weights import save_weights
from vvs.runtime.whole_file import write_json
from vvs.sampling import Sampling
from vvs.skipping import Never, Uniform
from vvs.statistics import Statistics, StepKind
from vvs.uniforms import UniformStream

WEIGHTS_FILE = "model.safetensors"
REPORT_FILE = "training.json"
EVALUATION_BATCHES = 4
HELD_OUT_SEED = 1
STATE_BYTES = 4 * torch.float32.itemsize
"""Of a training state, per parameter: the weights, their average, and the optimizer's two moments."""


@dataclass(frozen=True)
class DrafterJob:
    """What is trained and how it is judged."""

    training: TrainSettings
    mix: FeatureMix
    go_on: bool = False
    """Start from the model set's drafter; otherwise from a fresh one with the target's embeddings."""
    decoded_prompts: int = 4
    """Held-out prompts that are decoded to measure accepted lengths; 0: none."""
    cfg_scale: float = 2.0
    """Guidance scale that is trained for and decoded with; no effect on a target without guidance."""
    held_out: int = 32
    """Examples that are judged and not trained on; which ones, the seed says."""
    layers: int | None = None
    """Of the drafter; None: one, or as many as the drafter has that training starts from."""

    def __post_init__(self) -> None:
        if self.layers is not None and self.layers < 1:
            raise SettingsError(f"a drafter has at least 1 layer, but {self.layers} were asked for")


def disk_of_training(models: ModelSet, job: DrafterJob, out: Path) -> int:
    """Bytes that training a drafter in ``out`` takes besides what lies there: two states, and weights."""
    count = parameters(without_memory(Drafter, _config(models, job)))
    state = out / f"{DrafterStage.name}.train.pt"
    there = state.stat().st_size if state.is_file() else 0
    return count * (2 * STATE_BYTES + torch.float16.itemsize) - there


def train_own_drafter(
    models: ModelSet,
    examples: TokenExamples,
    job: DrafterJob,
    out: Path,
    console: Console,
) -> dict[str, Any]:
    """Train a drafter and write it into the folder ``out`` in the published layout.

    The folder also keeps the training state, so that a second call goes on, and ``training.json``: losses and
    top-1 agreement on held-out examples, accepted lengths and step compression on held-out prompts.

    Raises:
        SettingsError: too few examples, or a run in ``out`` began with other data or settings.
        VvsError: the training state in ``out`` is damaged, or a gradient is not finite.

    """
    kept, held_out = examples.split(job.held_out, job.training.seed)
    drafter = _begun(models, job).requires_grad_(True)
    encoder = models.text_encoder
    stage = DrafterStage(drafter, models.target, kept, job.mix, job.cfg_scale, encoder)
    train(stage, job.training, out, console, basis=_basis(models, examples, job))
    _write(drafter, out)
    judged = DrafterStage(drafter, models.target, held_out, job.mix, job.cfg_scale, encoder)
    report: dict[str, Any] = {
        "steps": job.training.steps,
        "examples": len(kept),
        "held_out": len(held_out),
        "losses": _mean_losses(judged, job.training.batch),
        "decoding": _decoded(models, drafter, held_out, job, console),
    }
    write_json(out / REPORT_FILE, report)
    return report


def _basis(models: ModelSet, examples: TokenExamples, job: DrafterJob) -> dict[str, str | int | float]:
    """What a run must go on with, as the command line calls it."""
    return {
        "held-out": job.held_out,
        "predicted": job.mix.predicted,
        "stale": job.mix.stale,
        "cfg": job.cfg_scale,
        "go-on": job.go_on,
        "layers": _config(models, job).layers,
        "examples of SHA-256": examples.sha256,
        "a target of SHA-256": sha256_of_tensors(models.target.state_dict()),
    }


def _config(models: ModelSet, job: DrafterJob) -> DrafterConfig:
    """Sizes of the drafter that is trained."""
    there = models.drafter.config
    if job.go_on:
        return dataclasses.replace(there, layers=job.layers or there.layers)
    return DrafterConfig(models.geometry, there.ffn, layers=job.layers or 1)


def _begun(models: ModelSet, job: DrafterJob) -> Drafter:
    """The drafter that training starts from."""
    config = _config(models, job)
    if job.go_on:
        return deepened(models.drafter, config.layers)
    drafter = Drafter(config)
    drafter.embed_tokens.weight.data.copy_(models.target.model.embed_tokens.weight.data)
    return drafter


def _write(drafter: Drafter, out: Path) -> None:
    config = drafter.config
    write_json(
        out / "config.json",
        {
            "architectures": ["EagleDrafter"],
            "hidden_size": config.geometry.hidden,
            "intermediate_size": config.ffn,
            "num_attention_heads": config.geometry.heads,
            "num_hidden_layers": config.layers,
            "rms_norm_eps": config.norm_eps,
            "vocab_size": config.geometry.vocabulary,
            "torch_dtype": "float16",
        },
    )
    save_weights(drafter, out / WEIGHTS_FILE)


@torch.no_grad()
def _mean_losses(stage: DrafterStage, batch: int) -> Mapping[str, float]:
    rng = np.random.default_rng(HELD_OUT_SEED)
    rows = [stage.losses(batch, rng) for _ in range(EVALUATION_BATCHES)]
    return {name: float(np.mean([float(row[name]) for row in rows])) for name in rows[0]}


def _decoded(
    models: ModelSet, drafter: Drafter, held_out: TokenExamples, job: DrafterJob, console: Console
) -> dict[str, dict[str, float]]:
    """Accepted lengths of EAGLE and of VVS (every second step skipped) over held-out prompts."""
    count = min(job.decoded_prompts, len(held_out))
    if not count:
        return {}
    with_drafter = models.with_drafter(drafter.eval())
    decoder = Decoder(EagerEngine(with_drafter), Codebook.from_latents(models.codebook, 1))
    prompts = held_out.pick(np.arange(count)).conditioning
    scale = job.cfg_scale if models.geometry.guidance_rows == 2 else 1.0
    report = {}
    for mode, policy in (("eagle", Never()), ("vvs", Uniform(2))):
        config = GenerationConfig(
            tree=models.default_tree,
            acceptance=Exact(),
            skipping=policy,
            sampling=Sampling(),
            cfg_scale=scale,
        )
        console.print(f"decoding {count} held-out prompts: {mode}", highlight=False)
        streams = [UniformStream(seed) for seed in range(count)]
        finished = decoder.generate(prompts, [config] * count, streams)
        report[mode] = _lengths(finished.statistics)
    return report


def _lengths(statistics: tuple[Statistics, ...]) -> dict[str, float]:
    return {
        "step_compression": float(np.mean([s.step_compression for s in statistics])),
        "accepted_verify": float(np.mean([s.mean_accepted(StepKind.VERIFY) for s in statistics])),
        "accepted_skip": float(np.mean([s.mean_accepted(StepKind.SKIP) for s in statistics])),
    }
