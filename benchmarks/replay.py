"""``python -m vvs.benchmarks.replay DIR``: replay recorded runs of the published implementation.

Every trace in the folder is decoded again with its own weights, prompt, settings and uniform numbers,
through the eager PyTorch modules and through exported graphs in ONNX Runtime. One line a trace and engine;
any difference in the image's tokens is an error.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from torch import nn

from vvs.benchmarks.recorded_ties import RecordedTies
from vvs.benchmarks.recording import Arrays, Recording, Trace
from vvs.codebook import Codebook
from vvs.decoding import Decoder
from vvs.engine import Engine
from vvs.errors import VvsError
from vvs.export.bundle import export_bundle
from vvs.export.drafter import Drafter, DrafterConfig
from vvs.export.eager import EagerEngine
from vvs.export.llamagen import CaptionConditioning, Target, TargetConfig
from vvs.export.model_set import ModelSet
from vvs.export.vq import VQConfig, VQTokenizer
from vvs.geometry import Geometry
from vvs.runtime.backends import open_engine
from vvs.runtime.bundle import Bundle
from vvs.statistics import StepKind
from vvs.step import StepEvent, StepRecord
from vvs.uniforms import RecordedUniforms

ENGINES = ("eager", "onnxruntime")
PUBLISHED_K, PUBLISHED_DEPTH = 10, 4


@dataclass(frozen=True)
class Replayed:
    """How one trace went on one engine."""

    file: str
    engine: str
    steps: int
    steps_equal: int
    forward_passes: int
    tokens: int
    tokens_equal: int
    completed: int = 0
    """Draft trees whose tied nodes were taken from the recording."""
    note: str = ""

    @property
    def equal(self) -> bool:
        """Whether the image is the recorded one, token for token."""
        return self.tokens == self.tokens_equal and not self.note

    def __str__(self) -> str:
        verdict = "ok" if self.equal else "DIFFERS"
        return (
            f"{self.file:<32} {self.engine:<12} {self.steps:>4} steps ({self.steps_equal} equal in full)"
            f" {self.forward_passes:>4} forward passes  tokens equal {self.tokens_equal}/{self.tokens}"
            f"  {verdict}{self._remark()}"
        )

    def _remark(self) -> str:
        if self.note:
            return f"  {self.note}"
        return f"  ({self.completed} trees completed with recorded ties)" if self.completed else ""


def model_set(recording: Recording, k: int, depth: int) -> ModelSet:
    """Build the recorded models."""
    target = recording.target
    vocabulary, hidden = target["model.embed_tokens.weight"].shape
    prompt, caption_dim = target["model.cls_embedding.uncond_embedding"].shape
    vq = _image_tokenizer(recording)
    geometry = Geometry(
        grid=recording.grid,
        vocabulary=vocabulary,
        code_dim=recording.codebook.shape[1],
        prompt_length=prompt,
        layers=sum(name.endswith("input_layernorm.weight") for name in target),
        heads=recording.heads,
        head_dim=hidden // recording.heads,
        hidden=hidden,
        guidance_rows=2,
        image_size=recording.grid * vq.config.downsampling,
    )
    config = TargetConfig(
        geometry, CaptionConditioning(caption_dim), len(target["model.layers.0.mlp.up_proj.weight"])
    )
    drafter = DrafterConfig(geometry, len(recording.drafter["layers.0.mlp.up_proj.weight"]))
    modules = Target(config), Drafter(drafter)
    for module, arrays in zip(modules, (target, recording.drafter), strict=True):
        _load(module, arrays)
    shape = recording.tree(k, depth)
    return ModelSet("recording", *modules, vq, recording.codebook, {shape.name: shape}, shape.name)


def _load(module: nn.Module, arrays: Arrays) -> None:
    module.load_state_dict({name: torch.from_numpy(a.astype(np.float32)) for name, a in arrays.items()})


def _image_tokenizer(recording: Recording) -> VQTokenizer:
    """The recorded one, or a small one of random weights: a replay compares tokens, not pixels."""
    if recording.vq is None:
        codes, code_dim = recording.codebook.shape
        return VQTokenizer(VQConfig(codes, code_dim, 32, (1, 2), residual_blocks=1, latent_channels=32))
    vq = VQTokenizer(_vq_config(recording.vq))
    _load(vq, recording.vq)
    return vq


def _vq_config(arrays: Arrays) -> VQConfig:
    codes, code_dim = arrays["quantize.embedding.weight"].shape
    channels = arrays["encoder.conv_in.weight"].shape[0]
    levels = len({name.split(".")[2] for name in arrays if name.startswith("encoder.conv_blocks.")})
    widths = [arrays[f"encoder.conv_blocks.{i}.res.0.conv2.weight"].shape[0] for i in range(levels)]
    latent = arrays["encoder.conv_out.weight"].shape[0]
    return VQConfig(codes, code_dim, channels, tuple(w // channels for w in widths), latent_channels=latent)


def replay(trace: Trace, engine: Engine, engine_name: str, codebook: Codebook) -> Replayed:
    """Decode one trace again and count what is equal."""
    (tree,) = engine.trees
    conditioning = {
        "hidden_states": trace.arrays["caption"].astype(np.float32),
        "mask": trace.arrays["caption_mask"] > 0,
    }
    uniforms = RecordedUniforms(trace.arrays["uniforms"])
    events: list[StepEvent] = []
    ties = RecordedTies(engine, trace)
    decoder = Decoder(ties, codebook)
    recorded = trace.arrays["tokens"]
    try:
        done = decoder.generate(conditioning, [trace.config(tree)], [uniforms], events.append)
    except VvsError as error:
        return Replayed(trace.file, engine_name, len(events), 0, 0, len(recorded), 0, note=str(error))
    records = [record for event in events for record in event.records]
    equal = sum(same_step(record, trace) for record in records)
    tokens = int((done.tokens[0] == recorded).sum())
    statistics = done.statistics[0]
    return Replayed(
        trace.file,
        engine_name,
        statistics.steps,
        equal,
        statistics.forward_passes,
        len(recorded),
        tokens,
        ties.completed,
    )


def same_step(record: StepRecord, trace: Trace) -> bool:
    """Whether a step is the recorded one in full: its kind, its decision and its tree."""
    arrays, step = trace.arrays, record.step
    tree = trace.tree(step)
    decision = (record.kind is StepKind.SKIP, record.accept, record.path)
    return (
        tree is not None
        and decision == (arrays["kind"][step], arrays["accept"][step], arrays["path"][step])
        and np.array_equal(record.tree.tokens, tree.tokens[0])
        and np.array_equal(record.tree.depth, tree.depth[0])
        and np.array_equal(record.tree.ancestors, tree.ancestors[0])
    )


def engines(models: ModelSet, names: list[str], console: Console) -> Iterator[tuple[str, Engine]]:
    """Open the engines, one after the other; the exported bundle lives as long as its engine is in use."""
    with ExitStack() as stack:
        for name in names:
            if name == "eager":
                yield name, EagerEngine(models)
                continue
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bundle"
            export_bundle(models, folder, console=console)
            yield name, open_engine(Bundle.open(folder), name, {})


def main(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with the recording's .npz files.")],
    chosen: Annotated[
        list[str] | None,
        typer.Option("--engine", help=f"Of {', '.join(ENGINES)}; repeat for more. Default: all."),
    ] = None,
    k: Annotated[
        int, typer.Option(min=1, help="Children per node of the recorded draft trees.")
    ] = PUBLISHED_K,
    depth: Annotated[
        int, typer.Option(min=0, help="Expansions of the recorded draft trees.")
    ] = PUBLISHED_DEPTH,
) -> None:
    """Replay every trace of DIR on every engine; exit 1 on any difference."""
    console = Console(stderr=True)
    names = list(chosen or ENGINES)
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise typer.BadParameter(f"unknown engine {unknown[0]!r}; there is {', '.join(ENGINES)}")
    try:
        recording = Recording.read(folder)
        models = model_set(recording, k, depth)
        neighbours = max((t.settings["lantern_k"] for t in recording.traces), default=1)
        codebook = Codebook.from_latents(recording.codebook, neighbours + 1)
        results = []
        for name, engine in engines(models, names, Console(quiet=True)):
            for trace in recording.traces:
                results.append(replay(trace, engine, name, codebook))
                print(results[-1], flush=True)
    except VvsError as error:
        console.print(f"[red]error:[/red] {error}")
        raise typer.Exit(2) from error
    differing = sum(not result.equal for result in results)
    print(f"{len(results) - differing} of {len(results)} replays are equal token for token")
    if differing:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
