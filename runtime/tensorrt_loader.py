"""Opening engine files: identity first, then deserialisation; every refusal is one sentence.

Opens engines, runs none: execution is a backend's business.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vvs.engine_record import EngineIdentity, EngineRecord
from vvs.errors import BackendError, EngineError
from vvs.manifest import TARGET, draft_tree_graph
from vvs.runtime.bundle import Bundle
from vvs.runtime.cuda_driver import Driver, find_driver
from vvs.runtime.engine_file import (
    build_command,
    built_engines,
    engine_file,
    find_record,
    require_current,
    require_intact,
    require_pair,
    wanted_here,
)
from vvs.runtime.tensorrt_log import Messages, make_logger
from vvs.runtime.tensorrt_package import TensorRT, load_tensorrt

NO_MEMORY = ("out of memory", "OutOfMemory", "cudaError 2:")
OTHER_WAY = "run the bundle with --backend onnxruntime"


@dataclass(frozen=True)
class LoadedEngine:
    """An open engine. The runtime must live as long as the engine."""

    record: EngineRecord
    engine: Any
    runtime: Any


def load_pair(
    bundle: Bundle, backend: str, tree: str, *, verify: bool = True
) -> tuple[LoadedEngine, LoadedEngine]:
    """Open the target and the drafter of ``tree``, checked as a pair before either is opened."""
    package, driver = load_tensorrt(backend), find_driver()
    arch = architecture(bundle, package, driver)
    graphs = (TARGET, draft_tree_graph(tree))
    target, drafter = (find_record(bundle, graph, arch, backend) for graph in graphs)
    require_pair(drafter, target)
    first, second = (load_engine(bundle, backend, graph, verify=verify) for graph in graphs)
    return first, second


def load_engine(bundle: Bundle, backend: str, graph: str, *, verify: bool = True) -> LoadedEngine:
    """Check an engine and open it on the GPU at hand.

    Args:
        bundle: whose engine it is.
        backend: ``tensorrt`` or ``tensorrt-rtx``.
        graph: which graph's.
        verify: also compare the file's SHA-256, which reads all of it.

    Raises:
        EngineError: not built, damaged, stale, or built for something else.
        BackendError: this machine cannot open it: no driver, too old a driver, no memory.

    """
    package, driver = load_tensorrt(backend), find_driver()
    arch = architecture(bundle, package, driver)
    record = find_record(bundle, graph, arch, backend)
    path = engine_file(bundle.path, graph, arch)
    require_current(path, record, wanted_by(package, wanted_here(bundle, record.identity)))
    require_intact(path, record, verify=verify)
    if record.identity.flags.get("strip-weights"):
        raise EngineError(
            f"{path} was built without its weights; put them in with "
            f"`vvs refit {bundle.path} --backend {package.backend}`"
        )
    logger, messages = make_logger(package)
    engine, runtime = open_plan(package, driver, record, path, logger, messages)
    return LoadedEngine(record, engine, runtime)


def open_plan(
    package: TensorRT,
    driver: Driver | None,
    record: EngineRecord,
    path: Path,
    logger: Any,
    messages: Messages,
) -> tuple[Any, Any]:
    """Open an engine file that was checked: the engine, and the runtime that must live as long.

    Raises:
        BackendError: this machine cannot open it.

    """
    runtime = package.api.Runtime(logger)
    if record.identity.flags.get("version-compatible"):
        runtime.engine_host_code_allowed = True  # such plans bring their own lean runtime
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise refusal(package, driver, record, messages)
    return engine, runtime


def wanted_by(package: TensorRT, found: EngineIdentity) -> EngineIdentity:
    """The identity that the installed package can open; version-compatible plans open in later versions."""
    if found.flags.get("version-compatible") and found.builder == package.name:
        return found
    return dataclasses.replace(found, builder=package.name, version=package.version)


def architecture(bundle: Bundle, package: TensorRT, driver: Driver | None) -> str:
    """The architecture of the GPU at hand; without a GPU, one that there are engines for.

    The latter lets everything but the GPU itself be checked, so that the sentence names what is really wrong.
    """
    if driver is not None and driver.gpus:
        return driver.gpus[0].arch
    built = sorted({arch for _, arch, _ in built_engines(bundle.path)})
    if not built:
        raise EngineError(
            f"{bundle.path} has no engines; build them with "
            f"`{build_command(bundle.path, package.backend, 'sm_89')}` for your GPU's architecture"
        )
    return built[0]


def refusal(
    package: TensorRT, driver: Driver | None, record: EngineRecord, messages: Messages
) -> BackendError:
    """Why an engine whose identity is right did not open, in one sentence."""
    what = f"the engine of {record.identity.graph} for {record.identity.arch} cannot be opened"
    if driver is None:
        return BackendError(
            f"{what}: it needs an NVIDIA driver for CUDA {package.cuda}, and this machine has none; "
            f"install one, or {OTHER_WAY}"
        )
    if driver.cuda[0] < package.cuda:
        return BackendError(
            f"{what}: the driver runs CUDA {'.'.join(map(str, driver.cuda))}, but {package.title} needs "
            f"CUDA {package.cuda}; update the driver, or {OTHER_WAY}"
        )
    if not driver.gpus:
        return BackendError(f"{what}: there is a driver but no GPU; check `nvidia-smi`, or {OTHER_WAY}")
    reason = messages.first_error()
    if any(sign in message for message in messages.errors for sign in NO_MEMORY):
        return BackendError(
            f"{what}: {driver.gpus[0].name} has not enough free memory for a plan of "
            f"{record.bytes / 1e6:,.0f} MB; free some, "
            "or build with a smaller --batch or with --allow-weight-streaming"
        )
    return BackendError(f"{what}: {reason}; rebuild it with `{record.command}`")
