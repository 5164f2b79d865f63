"""Engine files: what they are called, the record beside each, and whether it still fits the bundle.

Reads and checks without a GPU and without TensorRT; writing them is ``vvs.export.tensorrt``.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vvs.engine_record import (
    EngineIdentity,
    EngineRecord,
    contract_differences,
    identity_differences,
)
from vvs.errors import BundleError, EngineError
from vvs.manifest import TARGET, WEIGHTS_FILE, Manifest, draft_tree_graph
from vvs.runtime.bundle import Bundle, sha256_of

SUFFIX = ".engine"
_NAME = re.compile(r"(?P<graph>.+)\.(?P<arch>sm_\d+)\.engine")


def engine_file(folder: Path, graph: str, arch: str) -> Path:
    """Where the engine of ``graph`` for ``arch`` lies, such as ``target.sm_89.engine``."""
    return folder / f"{graph}.{arch}{SUFFIX}"


def record_file(engine: Path) -> Path:
    """Where the record of an engine file lies."""
    return engine.with_suffix(".json")


def build_command(bundle: Path, backend: str, arch: str, graph: str | None = None) -> str:
    """The command that builds one graph's engine, or all."""
    chosen = f" --graph {graph}" if graph else ""
    return f"vvs build {bundle} --backend {backend} --arch {arch}{chosen}"


def onnx_hash(manifest: Manifest, graph: str) -> str:
    """SHA-256 over a graph's file and the weights that all graphs share, from the manifest's hashes."""
    names = [manifest.graphs[graph].file, *([WEIGHTS_FILE] if WEIGHTS_FILE in manifest.files else [])]
    return hashlib.sha256("".join(manifest.files[name].sha256 for name in names).encode()).hexdigest()


def read_record(engine: Path) -> EngineRecord:
    """Read the record beside an engine file.

    Raises:
        EngineError: there is none, or it cannot be read; the message names the command that builds both.

    """
    file = record_file(engine)
    arch = engine.stem.rpartition(".")[2]
    again = f"build the engine again with `vvs build {engine.parent} --arch {arch}`"
    if not file.is_file():
        raise EngineError(f"{engine} has no record {file.name} that says what it was built from; {again}")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise EngineError(f"{file} cannot be read as JSON ({error}); {again}") from error
    if not isinstance(data, dict):
        raise EngineError(f"{file} holds a {type(data).__name__}, but a record is a JSON object; {again}")
    try:
        return EngineRecord.from_dict(data, str(file))
    except EngineError:
        raise
    except BundleError as error:
        raise EngineError(f"{error}; {again}") from error


def find_record(bundle: Bundle, graph: str, arch: str, backend: str) -> EngineRecord:
    """The record of an engine that must be there.

    Raises:
        EngineError: not built, or not for this architecture; says what there is and how to build it.

    """
    engine = engine_file(bundle.path, graph, arch)
    if engine.is_file():
        return read_record(engine)
    others = [other for name, other, _ in built_engines(bundle.path) if name == graph]
    found = f"it is built for {', '.join(others)} only" if others else "none is built"
    raise EngineError(
        f"{bundle.path} has no engine of {graph} for {arch}: {found}; "
        f"build it with `{build_command(bundle.path, backend, arch)}`"
    )


def require_current(engine: Path, record: EngineRecord, wanted: EngineIdentity) -> None:
    """Refuse an engine that was not built from what is ``wanted``.

    Raises:
        EngineError: which part differs, both values, and the command that rebuilds it.

    """
    for difference in identity_differences(record.identity, wanted):
        kind = "foreign" if difference.part in ("GPU architecture", "builder version") else "stale"
        raise EngineError(f"{engine} is {kind}: {difference}; rebuild it with `{record.command}`")


def require_intact(engine: Path, record: EngineRecord, *, verify: bool = True) -> None:
    """Refuse an engine file that is not the one its record was written for."""
    size = engine.stat().st_size
    if size != record.bytes:
        raise EngineError(
            f"{engine} has {size} bytes, but its record says {record.bytes}; "
            f"rebuild it with `{record.command}`"
        )
    if verify and (actual := sha256_of(engine)) != record.sha256:
        raise EngineError(
            f"{engine} has been changed or damaged: its SHA-256 is {actual[:12]}, but its record says "
            f"{record.sha256[:12]}; rebuild it with `{record.command}`"
        )


def require_pair(drafter: EngineRecord, target: EngineRecord) -> None:
    """Refuse a drafter that does not fit the target.

    Raises:
        EngineError: which part differs, both values, and the command that rebuilds the drafter.

    """
    for difference in contract_differences(drafter.contract, target.contract):
        raise EngineError(
            f"the engine of {drafter.identity.graph} does not fit that of {target.identity.graph}: "
            f"{difference}; rebuild both with `{drafter.command.split(' --graph ')[0]}`"
        )


def wanted_here(bundle: Bundle, found: EngineIdentity) -> EngineIdentity:
    """What an engine's identity must be for this bundle, as far as the bundle tells."""
    return dataclasses.replace(found, onnx=onnx_hash(bundle.manifest, found.graph))


def built_engines(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Graph, architecture and path of every engine file in a folder."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        match = _NAME.fullmatch(path.name)
        if match:
            yield match["graph"], match["arch"], path


@dataclass(frozen=True)
class EngineState:
    """One engine file, seen without a GPU."""

    path: Path
    graph: str
    arch: str
    record: EngineRecord | None
    problem: str
    """Why it would be refused; empty if nothing speaks against it."""


def survey(bundle: Bundle, *, verify: bool = True) -> list[EngineState]:
    """Every engine beside a bundle, and what speaks against it. Needs neither GPU nor TensorRT."""
    states = [_state(bundle, *found, verify=verify) for found in built_engines(bundle.path)]
    targets = {s.arch: s.record for s in states if s.graph == TARGET and s.record is not None}
    return [_paired(state, targets.get(state.arch)) for state in states]


def _state(bundle: Bundle, graph: str, arch: str, path: Path, *, verify: bool) -> EngineState:
    record = None
    try:
        record = read_record(path)
        if graph not in bundle.manifest.graphs:
            raise EngineError(f"{path} is an engine of {graph}, but the bundle has no such graph; delete it")
        require_current(path, record, dataclasses.replace(wanted_here(bundle, record.identity), arch=arch))
        require_intact(path, record, verify=verify)
    except EngineError as error:
        return EngineState(path, graph, arch, record, str(error))
    return EngineState(path, graph, arch, record, "")


def _paired(state: EngineState, target: EngineRecord | None) -> EngineState:
    is_drafter = state.graph.startswith(draft_tree_graph(""))
    if state.problem or state.record is None or target is None or not is_drafter:
        return state
    try:
        require_pair(state.record, target)
    except EngineError as error:
        return dataclasses.replace(state, problem=str(error))
    return state
