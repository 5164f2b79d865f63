"""GpuLatency: how long each kind of step takes on a device, against the time its memory traffic takes."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

from vvs.benchmarks.floor import bundle_model
from vvs.benchmarks.gpu_parity import SEED, Subject
from vvs.benchmarks.gpu_report import Finding, NotHereError
from vvs.benchmarks.gpu_ways import Opened, Way
from vvs.benchmarks.report import Rows
from vvs.benchmarks.roofline import StepCost, step_costs
from vvs.config import GenerationConfig
from vvs.errors import SettingsError
from vvs.runtime.device.calls import Copy
from vvs.runtime.device.interface import Device
from vvs.runtime.device.run_plan import RunShape
from vvs.runtime.device.session import DeviceSession, Seen
from vvs.runtime.kernels.state import Counter, Decision, Phase
from vvs.runtime.prompts import encode
from vvs.skipping import Uniform
from vvs.uniforms import UniformStream

PROBE_BYTES = 1 << 29
"""Beyond the caches of any GPU."""
PROBE_REPEATS = 20
IMAGES = 2
PREFILL = "prefill, prompts and settings uploaded"
MILLI, MEBI = 1e3, 1 << 20
Seconds = dict[str, list[float]]


def copy_bandwidth(device: Device, nbytes: int = PROBE_BYTES) -> float:
    """Bytes a second that a copy within the device's memory reads and writes."""
    memory = device.allocate(2 * nbytes)
    try:
        stream = device.stream()
        halves = memory.leading((2, nbytes))
        call = Copy(halves.part(1), halves.part(0))
        device.issue(stream, call)
        device.synchronise(stream)
        started = time.perf_counter()
        for _ in range(PROBE_REPEATS):
            device.issue(stream, call)
        device.synchronise(stream)
        return 2 * nbytes * PROBE_REPEATS / (time.perf_counter() - started)
    finally:
        device.free(memory)


def step_latencies(way: Way, subject: Subject, *, timed: bool) -> Finding:
    """Median time of every kind of step of one request, from queueing it to knowing its outcome on the host.

    The floor is the bytes that a step must read (:mod:`vvs.benchmarks.roofline`) at the bandwidth of a copy.
    """
    try:
        costs = step_costs(bundle_model(subject.bundle), subject.tree)
    except SettingsError as error:
        raise NotHereError(str(error)) from error
    with way.opened(subject.bundle, subject.models) as opened:
        bandwidth = copy_bandwidth(opened.device) if timed else 0.0
        seconds = _measure(opened, way, subject)
    if not timed:
        return Finding(True, f"ran every kind of step: {', '.join(sorted(seconds))}")
    medians = {kind: median(each) for kind, each in seconds.items()}
    figures = {
        "bandwidth": bandwidth,
        "seconds": medians,
        "floor_seconds": {cost.kind: cost.bytes / bandwidth for cost in costs},
        "steps": {kind: len(each) for kind, each in seconds.items()},
        "table": _table(costs, bandwidth, medians),
    }
    return Finding(True, f"a copy moves {bandwidth / 1e9:,.0f} GB/s; times are in the table", figures)


def _measure(opened: Opened, way: Way, subject: Subject) -> Seconds:
    """Seconds of every step of some images, plainly decoded and with every second step skipped."""
    tree, scale = subject.tree, subject.config("ar").cfg_scale
    skipping = GenerationConfig(tree=tree, cfg_scale=scale, skipping=Uniform(2))
    seconds: Seconds = {}
    for config, trees in ((GenerationConfig(cfg_scale=scale), ()), (skipping, (tree,))):
        session = DeviceSession(
            opened.device,
            opened.engines,
            subject.bundle,
            subject.bundle.codebook,
            RunShape(1, trees, trees),
            graphs=way.captures,
        )
        try:
            _time_images(session, subject, config, seconds)
        finally:
            session.close()
    return seconds


def _time_images(
    session: DeviceSession, subject: Subject, config: GenerationConfig, seconds: Seconds
) -> None:
    """Draw images step by step, waiting after every beat; the first image warms up and is not counted."""
    for image in range(1 + IMAGES):
        _time_image(session, subject, config, seconds if image else {})


def _time_image(session: DeviceSession, subject: Subject, config: GenerationConfig, seconds: Seconds) -> None:
    def timed(kind: str, work: Callable[[], Seen]) -> Seen:
        started = time.perf_counter()
        seen = work()
        seconds.setdefault(kind, []).append(time.perf_counter() - started)
        return seen

    def skip() -> Seen:
        session.skip()
        return session.read()

    def verify(*, chain: bool) -> Seen:
        session.verify(chain=chain)
        return session.read()

    conditioning = encode(subject.bundle, list(subject.prompts[:1]))
    seen, step = timed(PREFILL, lambda: session.begin(conditioning, [config], [UniformStream(SEED)])), 0
    while seen.column(Counter.PHASE)[0] != Phase.COMPLETE:
        emitted = int(seen.column(Counter.EMITTED)[0])
        trees = session.trees.of(step, emitted, emitted)
        decided = timed("draft" if trees else "decide", partial(session.propose, trees))
        chain = bool(decided.column(Counter.CHAIN)[0])
        if decided.column(Counter.DECISION)[0] == Decision.SKIP:
            seen = timed("skip", skip)
        else:
            kind = "AR" if not trees else "verify after a skip" if chain else "verify"
            seen = timed(kind, partial(verify, chain=chain))
        step += 1


def _table(costs: list[StepCost], bandwidth: float, seconds: Mapping[str, float]) -> Rows:
    by_kind = {PREFILL if cost.kind == "prefill" else cost.kind: cost for cost in costs}
    rows = []
    for kind, measured in seconds.items():
        cost = by_kind.get(kind)
        floor = cost.bytes / bandwidth if cost else None
        rows.append(
            {
                "step": kind,
                "rows": str(cost.rows) if cost else "-",
                "MiB read": f"{cost.bytes / MEBI:.1f}" if cost else "-",
                "floor, ms": f"{MILLI * floor:.3f}" if floor else "-",
                "measured, ms": f"{MILLI * measured:.3f}",
                "over the floor": f"{measured / floor:.1f}x" if floor else "-",
            }
        )
    return rows
