"""Builder: the engines of a bundle, each written whole or not at all; up-to-date ones are left alone."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vvs.engine_record import EngineIdentity, EngineRecord, Profile, identity_differences
from vvs.errors import BackendError, EngineError, ExportError
from vvs.export.resources import require_disk
from vvs.export.tensorrt.graph_source import GraphSource, read_graph
from vvs.export.tensorrt.identity import contract_of, identity_of
from vvs.export.tensorrt.layers import engine_layers, parsed_layers
from vvs.export.tensorrt.memory_plan import plan_memory, print_memory_plan
from vvs.export.tensorrt.network import Network, parse
from vvs.export.tensorrt.profiles import profiles_of
from vvs.export.tensorrt.progress import Phases, cancel_on_interrupt, make_monitor
from vvs.export.tensorrt.settings import BuildSettings
from vvs.export.tensorrt.timing_cache import cache_path, keep_cache, use_cache
from vvs.runtime.bundle import Bundle, sha256_of
from vvs.runtime.cuda_driver import Driver, find_driver
from vvs.runtime.engine_file import engine_file, read_record, record_file, require_intact
from vvs.runtime.tensorrt_log import make_logger
from vvs.runtime.tensorrt_package import TensorRT, load_tensorrt
from vvs.runtime.whole_file import whole_file, write_json

LAYERS_SUFFIX = ".layers.json"


class EngineOutcome(NamedTuple):
    """What became of one engine."""

    path: Path
    skipped: bool
    """It was up to date."""
    seconds: float
    bytes: int
    reason: str
    """Why it was built."""


@dataclass(frozen=True)
class _Job:
    """One engine that is wanted."""

    path: Path
    identity: EngineIdentity
    reason: str
    """Why it must be built; empty if it is up to date."""


def build_engines(
    bundle: Bundle, settings: BuildSettings, console: Console | None = None
) -> list[EngineOutcome]:
    """Build the engines of a bundle beside its graphs.

    Args:
        bundle: whose graphs are built.
        settings: for which backend and architectures, with which shapes and flags.
        console: where the memory plan, progress and warnings are shown; None is silent.

    Raises:
        SettingsError: a flag, shape, graph or architecture that cannot work.
        BackendError: TensorRT is not installed, or finds no GPU where it needs one.
        ExportError: a graph that TensorRT cannot build, or weights that the disk has no room for.
        KeyboardInterrupt: after Ctrl-C, once TensorRT has stopped; finished engines are kept.

    """
    console = console or Console(quiet=True)
    package, driver = load_tensorrt(settings.backend), find_driver()
    arches = settings.architectures(package, driver)
    _require_flags(settings, package, driver)
    graphs = settings.chosen(bundle.manifest)
    requests = settings.requests_of(bundle.manifest)
    profiles = {g: profiles_of(bundle.manifest, g, requests, settings.shapes) for g in graphs}
    sources = {g: read_graph(bundle.file(bundle.manifest.graphs[g].file)) for g in graphs}
    weights = {g: source.weight_bytes for g, source in sources.items()}
    print_memory_plan(console, plan_memory(bundle.manifest, profiles, weights))
    workshop = _Workshop(bundle, settings, package, driver, console)
    jobs = {g: [workshop.job(g, arch, profiles[g]) for arch in arches] for g in graphs}
    if not settings.flags.strip_weights:
        needed = sum(weights[g] * sum(bool(job.reason) for job in jobs[g]) for g in graphs)
        require_disk("the engines", needed, bundle.path)
    with workshop.bar():
        return [outcome for g in graphs for outcome in workshop.build(sources[g], jobs[g])]


def _require_flags(settings: BuildSettings, package: TensorRT, driver: Driver | None) -> None:
    given = list(settings.flags.given())
    if settings.timing_cache is not None:
        given.append("timing-cache-file")
    package.require(given, driver=driver is not None)


class _Workshop:
    """The builder and what it needs, for one run."""

    def __init__(
        self,
        bundle: Bundle,
        settings: BuildSettings,
        package: TensorRT,
        driver: Driver | None,
        console: Console,
    ) -> None:
        self._bundle = bundle
        self._settings = settings
        self._package = package
        self._driver = driver
        self._console = console
        self._logger, self._messages = make_logger(package)
        self._builder = package.api.Builder(self._logger)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._timing_cache = settings.timing_cache
        if settings.timing_cache is not None and package.changes_nothing("timing-cache-file"):
            self._warn(f"{package.title} times no kernels when it builds, so --timing-cache-file is ignored")
            self._timing_cache = None
        if settings.flags.allow_weight_streaming and package.needs_user_allocation:
            self._warn("engines that stream weights allocate while they run, so CUDA graphs cannot hold them")

    @contextmanager
    def bar(self) -> Iterator[None]:
        """Show progress meanwhile."""
        with self._progress:
            yield

    def job(self, graph: str, arch: str, profiles: Sequence[Profile]) -> _Job:
        """What is wanted, and whether it is there."""
        flags = self._settings.flags
        identity = identity_of(self._bundle.manifest, graph, arch, self._package, profiles, flags)
        path = engine_file(self._bundle.path, graph, arch)
        return _Job(path, identity, "forced" if self._settings.force else _out_of_date(path, identity))

    def build(self, source: GraphSource, jobs: Sequence[_Job]) -> Iterator[EngineOutcome]:
        """Build one graph for every architecture that lacks it; the graph is parsed once."""
        parsed = None
        for job in jobs:
            if not job.reason:
                self._console.print(f"{job.path.name} is up to date, nothing to do", highlight=False)
                yield EngineOutcome(job.path, True, 0.0, job.path.stat().st_size, "")
                continue
            parsed = parsed or parse(self._package, self._builder, self._logger, self._messages, source)
            yield self._build_one(parsed, job)

    def _build_one(self, parsed: Network, job: _Job) -> EngineOutcome:
        started = time.perf_counter()
        task = self._progress.add_task(job.path.name, total=1.0)
        phases = Phases(lambda share, _name: self._progress.update(task, completed=share))
        config = self._configure(parsed, job, make_monitor(self._package, phases))
        with cancel_on_interrupt(phases):
            plan = self._builder.build_serialized_network(parsed.network, config)
        if plan is None:
            raise self._failure(job)
        self._keep_timings(job, config)
        seconds = time.perf_counter() - started
        size = self._write(parsed, job, plan, seconds)
        self._progress.update(task, completed=1.0)
        self._console.print(
            f"{job.path.name}: {size / 1e6:,.1f} MB in {seconds:.1f} s ({job.reason})", highlight=False
        )
        return EngineOutcome(job.path, False, seconds, size, job.reason)

    def _configure(self, parsed: Network, job: _Job, monitor: Any) -> Any:
        config = self._builder.create_builder_config()
        self._package.aim(config, job.identity.arch)
        self._settings.flags.apply(self._package, config)
        if not self._settings.flags.allow_weight_streaming:
            self._package.allow_graph_capture(config)
        config.progress_monitor = monitor
        for profile in job.identity.profiles:
            optimisation = self._builder.create_optimization_profile()
            for i in range(parsed.network.num_inputs):
                name = parsed.network.get_input(i).name
                optimisation.set_shape(name, *dataclasses.astuple(profile.shapes[name]))
            if config.add_optimization_profile(optimisation) < 0:
                raise ExportError(
                    f"{self._package.title} refuses the profile {profile.use} of {job.identity.graph}: "
                    f"{self._messages.first_error()}"
                )
        if self._timing_cache is not None:
            file = cache_path(self._timing_cache, self._package, job.identity.arch)
            use_cache(file, config, self._messages, self._warn)
        self._messages.clear()
        return config

    def _keep_timings(self, job: _Job, config: Any) -> None:
        if self._timing_cache is not None:
            file = cache_path(self._timing_cache, self._package, job.identity.arch)
            keep_cache(file, config, self._warn)

    def _failure(self, job: _Job) -> Exception:
        """Why no plan was built."""
        what = f"{self._package.title} cannot build {job.identity.graph} for {job.identity.arch}"
        if not self._package.names_architectures and self._driver is None:
            return BackendError(
                f"{what}: it builds for the GPU at hand, and this machine has no NVIDIA driver"
            )
        return ExportError(f"{what}: {self._messages.first_error()}")

    def _write(self, parsed: Network, job: _Job, plan: Any, seconds: float) -> int:
        """Write engine, record and layer information; the record last, since it vouches for the engine."""
        job.path.with_suffix(LAYERS_SUFFIX).unlink(missing_ok=True)
        with whole_file(job.path) as temporary:
            with temporary.open("wb") as stream:
                stream.write(plan)
            size, sha256 = temporary.stat().st_size, sha256_of(temporary)
        if self._settings.layer_info:
            layers = engine_layers(self._package, self._logger, plan) if self._driver else None
            with whole_file(job.path.with_suffix(LAYERS_SUFFIX)) as temporary:
                temporary.write_text(layers or parsed_layers(self._package, parsed.network), encoding="utf-8")
        record = EngineRecord(
            identity=job.identity,
            digest=job.identity.digest,
            contract=contract_of(self._bundle.manifest, job.identity.graph),
            bytes=size,
            sha256=sha256,
            build_seconds=round(seconds, 3),
            command=self._settings.command(self._bundle.path, job.identity.arch),
        )
        write_json(record_file(job.path), record.to_dict(), indent=1)
        return size

    def _warn(self, sentence: str) -> None:
        self._console.print(f"warning: {sentence}", highlight=False)


def _out_of_date(path: Path, identity: EngineIdentity) -> str:
    """Why an engine must be built; empty if the one that is there will do."""
    if not path.is_file():
        return "not built yet"
    try:
        record = read_record(path)
        require_intact(path, record)
    except EngineError:
        return "damaged or without its record"
    return next((str(difference) for difference in identity_differences(record.identity, identity)), "")
