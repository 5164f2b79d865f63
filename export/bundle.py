"""Writing a bundle: graphs, arrays and the manifest, all or nothing.

A bundle is built in a temporary folder beside its place and renamed when it is complete and checked, so an
interrupted or failed export leaves what was there before. A bundle whose sources have not changed is not
built again.
"""

import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vvs.codebook import nearest_codes
from vvs.engine import Conditioning
from vvs.errors import BundleError, ExportError
from vvs.export.checkpoint import add_tensors
from vvs.export.compact import compact_drafter, compact_target
from vvs.export.footprint import MOST_NEIGHBOURS, footprint_of
from vvs.export.graphs import DecodeImageGraph, DraftTreeGraph, EncodePromptGraph, Graph, TargetGraph
from vvs.export.model_set import ModelSet
from vvs.export.onnx_export import GraphWriter, trace
from vvs.export.overflow import keep_overflowing
from vvs.export.parity import compare, print_parity, require_parity
from vvs.export.precision import FP32, Numerics
from vvs.export.resources import require_disk
from vvs.export.rounding import in_dtypes, with_rounded_products
from vvs.manifest import (
    CODEBOOK_LATENTS,
    CODEBOOK_NEAREST,
    MANIFEST_FILE,
    NOWHERE,
    SCHEMA_VERSION,
    TOKEN_EMBEDDINGS,
    TOKENIZER_FILE,
    FileSpec,
    GraphSpec,
    Manifest,
    Origin,
    ParityReport,
)
from vvs.runtime.whole_file import whole_folder, write_json

GRAPH_SOURCES = (
    "compact", "draft_tree", "drafter", "graphs", "int8", "layers", "llamagen", "nucleus", "onnx_export",
    "overflow", "precision", "rounding", "t5", "transposes", "vq",
)  # fmt: skip
"""Modules of this package whose code decides what is in a graph."""
PACKAGES = ("vvs-toolkit", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")

Parity = dict[str, tuple[ParityReport, ...]]


class ExportOutcome(NamedTuple):
    """What an export did."""

    path: Path
    skipped: bool
    """Nothing had changed, so nothing was done."""
    seconds: float
    parity: Parity
    """Differences from the PyTorch modules, by graph."""


class _Pair(NamedTuple):
    """One graph, twice: over compact modules to be traced, over plain ones to be compared with."""

    traced: Graph
    plain: Graph


def _pairs(models: ModelSet, numerics: Numerics) -> Iterator[_Pair]:
    """All graphs of a bundle. The image decoder runs once an image and stays float32."""
    typed = in_dtypes(models, numerics)
    compact = replace(typed, target=compact_target(typed.target), drafter=compact_drafter(typed.drafter))
    fast, plain = (with_rounded_products(each, numerics) for each in (compact, typed))
    encoder, vq = typed.text_encoder, typed.vq
    yield _Pair(EncodePromptGraph(fast.target, encoder), EncodePromptGraph(plain.target, encoder))
    yield _Pair(TargetGraph(fast.target), TargetGraph(plain.target))
    for name, shape in models.trees.items():
        yield _Pair(
            DraftTreeGraph(fast.drafter, fast.target, shape, name),
            DraftTreeGraph(plain.drafter, plain.target, shape, name),
        )
    yield _Pair(DecodeImageGraph(vq, models.geometry), DecodeImageGraph(vq, models.geometry))


def source_hash(models: ModelSet, numerics: Numerics, prompts: Mapping[str, Conditioning] = {}) -> str:
    """SHA-256 over everything a bundle is made from: settings, weights, code."""
    settings = {
        "schema": SCHEMA_VERSION,
        "numerics": dataclasses.asdict(numerics),
        # They decide what is kept only where it is left to them.
        "prompts": list(prompts) if numerics.auto else [],
        "name": models.name,
        "family": models.family,
        "target": dataclasses.asdict(models.target.config),
        "conditioning": dataclasses.asdict(models.conditioning),
        "drafter": dataclasses.asdict(models.drafter.config),
        "vq": dataclasses.asdict(models.vq.config),
        "text_encoder": models.text_encoder and dataclasses.asdict(models.text_encoder.config),
        "random_parts": list(models.random_parts),
        "trees": {name: dataclasses.asdict(shape) for name, shape in models.trees.items()},
        "default_tree": models.default_tree,
        "defaults": dict(models.defaults),
        "examples": list(models.examples),
        "max_requests": models.max_requests,
        "tokenizer": models.tokenizer,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for module in GRAPH_SOURCES:
        digest.update((Path(__file__).parent / f"{module}.py").read_bytes())
    for part in models.modules:
        add_tensors(digest, part.state_dict())
    digest.update(np.ascontiguousarray(models.codebook).data)
    return digest.hexdigest()


def file_spec(path: Path) -> FileSpec:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return FileSpec(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the bundle in ``folder``; None if there is none that this version reads."""
    try:
        return Manifest.from_dict(json.loads((folder / MANIFEST_FILE).read_text()))
    except (OSError, ValueError, BundleError):
        return None


def _intact(folder: Path, manifest: Manifest) -> bool:
    return all(
        (folder / name).is_file() and file_spec(folder / name) == spec
        for name, spec in manifest.files.items()
    )


def _write_arrays(models: ModelSet, numerics: Numerics, folder: Path) -> None:
    """Codebook, token embeddings and tokenizer. numpy lacks bfloat16: that is stored as its bits."""
    embeddings = models.target.model.embed_tokens.weight.detach().to(numerics.dtype)
    held = embeddings.view(torch.uint16) if embeddings.dtype == torch.bfloat16 else embeddings
    neighbours = min(models.geometry.vocabulary - 1, MOST_NEIGHBOURS)
    np.save(folder / CODEBOOK_LATENTS, models.codebook)
    np.save(folder / CODEBOOK_NEAREST, nearest_codes(models.codebook, neighbours))
    np.save(folder / TOKEN_EMBEDDINGS, held.cpu().numpy())
    if models.tokenizer is not None:
        (folder / TOKENIZER_FILE).write_text(models.tokenizer)


def _manifest(
    models: ModelSet, numerics: Numerics, folder: Path, graphs: Mapping[str, GraphSpec], source: str
) -> Manifest:
    versions = {package: version(package) for package in PACKAGES}
    return Manifest(
        name=models.name,
        family=models.family,
        precision=numerics.name,
        geometry=models.geometry,
        conditioning=models.conditioning,
        trees=models.trees,
        default_tree=models.default_tree,
        max_requests=models.max_requests,
        graphs=graphs,
        files={path.name: file_spec(path) for path in sorted(folder.iterdir())},
        versions=versions | {"python": ".".join(map(str, sys.version_info[:3]))},
        source=source,
        defaults=models.defaults,
        examples=models.examples,
        random_parts=models.random_parts,
        kept_fp32=numerics.kept,
    )


def _build(
    models: ModelSet,
    numerics: Numerics,
    folder: Path,
    source: str,
    origin: Origin,
    step: Callable[[str], Any],
) -> Parity:
    """Fill ``folder``; ``step`` is told what comes next."""
    writer = GraphWriter(folder)
    specs: dict[str, GraphSpec] = {}
    parity: Parity = {}
    for traced, plain in _pairs(models, numerics):
        file = f"{traced.name}.onnx"
        step(f"tracing {traced.name}")
        writer.write(trace(traced, models.geometry.guidance_rows), file)
        step(f"checking {traced.name}")
        parity[traced.name] = compare(folder / file, plain, numerics.precision.compute)
        require_parity(traced.name, parity[traced.name])
        specs[traced.name] = GraphSpec(file, traced.inputs, traced.outputs, parity[traced.name])
    step("arrays and manifest")
    _write_arrays(models, numerics, folder)
    _write_manifest(replace(_manifest(models, numerics, folder, specs, source), origin=origin), folder)
    return parity


def _write_manifest(manifest: Manifest, folder: Path) -> None:
    write_json(folder / MANIFEST_FILE, manifest.to_dict(), indent=1)


def _check_place(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ExportError(f"{path} is a file, but a bundle is a folder; choose another place")
    if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST_FILE).is_file():
        raise ExportError(
            f"{path} is a folder that holds no bundle, so it is not replaced; "
            "choose another place or remove it"
        )


def export_bundle(
    models: ModelSet,
    path: str | os.PathLike[str],
    *,
    numerics: Numerics = FP32,
    prompts: Mapping[str, Conditioning] = {},
    origin: Origin = NOWHERE,
    console: Console | None = None,
    force: bool = False,
) -> ExportOutcome:
    """Export ``models`` into the bundle folder ``path``, unless an unchanged export is there already.

    Args:
        models: what to export.
        path: the bundle's folder; an older bundle there is replaced when the new one is complete.
        numerics: how target, drafter and text encoder compute.
        prompts: inputs of the prompt encoder for one request each, by what they are called; parts that
            overflow on them are reported, and kept in float32 where that is asked for.
        origin: where the models come from; noted in the manifest, and part of nothing else.
        console: where progress, overflows and the table of differences are shown; None is silent.
        force: export even if nothing has changed.

    Raises:
        ExportError: a part that the models lack is to be kept in float32, the place is taken, or a graph
            differs from its module.

    """
    started = time.perf_counter()
    place = Path(path)
    console = console or Console(quiet=True)
    numerics.require_parts(models.geometry.layers, text_encoder=models.text_encoder is not None)
    _check_place(place)
    source = source_hash(models, numerics, prompts)
    existing = read_manifest(place)
    if not force and existing is not None and existing.source == source and _intact(place, existing):
        if existing.origin != origin:
            _write_manifest(replace(existing, origin=origin), place)
        console.print(f"{place} is up to date, nothing to do")
        parity = {name: spec.parity for name, spec in existing.graphs.items()}
        return ExportOutcome(place, True, time.perf_counter() - started, parity)
    require_disk("the bundle", footprint_of(models, numerics.name).total, place)
    numerics = keep_overflowing(models, numerics, prompts, console)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, whole_folder(place) as folder:
        task = progress.add_task("starting", total=2 * (3 + len(models.trees)) + 1)
        done = iter(range(10**6))
        parity = _build(
            models,
            numerics,
            folder,
            source,
            origin,
            lambda what: progress.update(task, description=what, completed=next(done)),
        )
        progress.update(task, description="done", completed=next(done))
    print_parity(console, parity, numerics.precision.compute)
    return ExportOutcome(place, False, time.perf_counter() - started, parity)
