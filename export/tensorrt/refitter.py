"""Refitter: new weights into engines that were built for it, without a rebuild. Needs the GPU they are for.

The new weights are those of the bundle as it is now: exported again into the same folder, from other weights
of the same model. An engine is refitted if nothing but its ONNX hash differs from what the bundle wants;
TensorRT itself refuses a graph that has another structure. A stripped engine gets its weights the same way.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from vvs.engine_record import EngineIdentity, EngineRecord, identity_differences
from vvs.errors import EngineError, ExportError, SettingsError
from vvs.export.tensorrt.graph_source import GraphSource, read_graph
from vvs.export.tensorrt.identity import contract_of
from vvs.runtime.bundle import Bundle, sha256_of
from vvs.runtime.cuda_driver import find_driver
from vvs.runtime.engine_file import (
    build_command,
    built_engines,
    onnx_hash,
    read_record,
    record_file,
    require_intact,
)
from vvs.runtime.tensorrt_loader import architecture, open_plan, wanted_by
from vvs.runtime.tensorrt_log import Messages, make_logger
from vvs.runtime.tensorrt_package import TensorRT, load_tensorrt
from vvs.runtime.whole_file import whole_file, write_json

REFIT, STRIPPED = "refit", "strip-weights"


class RefitOutcome(NamedTuple):
    """What became of one engine."""

    path: Path
    skipped: bool
    """It had these weights already."""


@dataclass(frozen=True)
class _Refit:
    """An engine, and what it is to become."""

    path: Path
    record: EngineRecord
    wanted: EngineIdentity


def refit_engines(
    bundle: Bundle, backend: str, graphs: Sequence[str] = (), console: Console | None = None
) -> list[RefitOutcome]:
    """Put the bundle's weights into the engines beside it.

    Everything that can be refused without a GPU is refused before an engine is opened.

    Args:
        bundle: whose weights, and whose engines for the GPU at hand.
        backend: ``tensorrt`` or ``tensorrt-rtx``.
        graphs: of which graphs; empty is all that are built.
        console: where it is told; None is silent.

    Raises:
        SettingsError: a graph that the bundle does not have.
        EngineError: no engine, one that was not built with ``--refit``, or more than its weights differ.
        BackendError: TensorRT is missing, or this machine cannot open the engine.
        ExportError: TensorRT refuses the weights.

    """
    console = console or Console(quiet=True)
    package, driver = load_tensorrt(backend), find_driver()
    outcomes = []
    for refit in _planned(bundle, package, architecture(bundle, package, driver), graphs):
        needed = refit.wanted != refit.record.identity
        if needed:
            source = read_graph(bundle.file(bundle.manifest.graphs[refit.wanted.graph].file))
            logger, messages = make_logger(package)
            engine, _runtime = open_plan(package, driver, refit.record, refit.path, logger, messages)
            _write(bundle, refit, refitted(package, engine, logger, messages, source))
        told = "has the bundle's weights now" if needed else "has the bundle's weights already"
        console.print(f"{refit.path.name} {told}", highlight=False)
        outcomes.append(RefitOutcome(refit.path, not needed))
    return outcomes


def refitted(package: TensorRT, engine: Any, logger: Any, messages: Messages, source: GraphSource) -> Any:
    """The plan of an open engine with the weights of a graph.

    Raises:
        ExportError: TensorRT refuses them, or some weights are missing.

    """
    api = package.api
    refitter = api.Refitter(engine, logger)
    parser = api.OnnxParserRefitter(refitter, logger)
    if not parser.refit_from_bytes(source.model, str(source.file)):
        told = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        raise ExportError(
            f"{package.title} refuses the weights of {source.file}: "
            f"{told[0] if told else messages.first_error()}; if the model has changed, build again"
        )
    missing = refitter.get_missing_weights()
    if missing or not refitter.refit_cuda_engine():
        what = f"{len(missing)} weights are missing, the first is {missing[0]!r}" if missing else ""
        raise ExportError(
            f"{package.title} cannot refit the engine with {source.file}: {what or messages.first_error()}"
        )
    config = engine.create_serialization_config()
    remain = getattr(api.SerializationFlag, "INCLUDE_REFIT", None)
    if remain is not None:  # older versions keep engines refittable without being told
        config.set_flag(remain)
    return engine.serialize_with_config(config)


def _planned(bundle: Bundle, package: TensorRT, arch: str, graphs: Sequence[str]) -> list[_Refit]:
    """The engines that are there for an architecture, each checked."""
    for graph in graphs:
        if graph not in bundle.manifest.graphs:
            raise SettingsError(
                f"--graph is {graph!r}, but the bundle has {', '.join(bundle.manifest.graphs)}"
            )
    found = [
        path
        for graph, built_for, path in built_engines(bundle.path)
        if built_for == arch and (graph in graphs or not graphs)
    ]
    if not found:
        raise EngineError(
            f"{bundle.path} has no such engine for {arch}; "
            f"build it with `{build_command(bundle.path, package.backend, arch)} --refit`"
        )
    return [_checked(bundle, package, path) for path in found]


def _checked(bundle: Bundle, package: TensorRT, path: Path) -> _Refit:
    record = read_record(path)
    require_intact(path, record)
    found = record.identity
    if found.graph not in bundle.manifest.graphs:
        raise EngineError(
            f"{path} is an engine of {found.graph}, but the bundle has no such graph; delete it"
        )
    # What is refitted stays what it was but for its weights: another version or GPU needs a rebuild.
    for difference in identity_differences(found, wanted_by(package, found)):
        raise EngineError(f"{path} is foreign: {difference}; rebuild it with `{record.command}`")
    flags = {**found.flags, STRIPPED: False}
    wanted = dataclasses.replace(found, onnx=onnx_hash(bundle.manifest, found.graph), flags=flags)
    # Without --refit, a stripped engine takes the weights that it was built with and no others.
    if wanted.onnx != found.onnx and not found.flags.get(REFIT):
        raise EngineError(
            f"{path} was not built to be refitted; rebuild it with `{record.command} --refit`, "
            "and new weights need no rebuild from then on"
        )
    return _Refit(path, record, wanted)


def _write(bundle: Bundle, refit: _Refit, plan: Any) -> None:
    """Write the engine, then the record that vouches for it."""
    with whole_file(refit.path) as temporary:
        with temporary.open("wb") as stream:
            stream.write(plan)
        size, sha256 = temporary.stat().st_size, sha256_of(temporary)
    record = dataclasses.replace(
        refit.record,
        identity=refit.wanted,
        digest=refit.wanted.digest,
        contract=contract_of(bundle.manifest, refit.wanted.graph),
        bytes=size,
        sha256=sha256,
    )
    write_json(record_file(refit.path), record.to_dict(), indent=1)
