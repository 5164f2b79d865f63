"""The device interface on a real GPU: what the host stand-in promises must hold there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from little_device import ADD, N

from vvs.errors import BackendError
from vvs.runtime.cuda_driver import find_driver
from vvs.runtime.device.array import DeviceArray
from vvs.runtime.device.calls import Copy, Fill, Launch
from vvs.runtime.device.graphs import ProgramRunner
from vvs.runtime.pipeline import Pipeline

if TYPE_CHECKING:
    from vvs.runtime.device.cuda import CudaDevice

pytestmark = pytest.mark.gpu
SOURCE = """
extern "C" __global__ void add(int* values, const int* more, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) values[i] += more[i];
}
"""


@pytest.fixture(scope="module")
def arch() -> str:
    driver = find_driver()
    if driver is None or not driver.gpus:
        pytest.skip("needs an NVIDIA GPU, and this machine has none")
    pytest.importorskip("cuda.core")
    return driver.gpus[0].arch


@pytest.fixture
def device(arch: str) -> Iterator[CudaDevice]:
    from cuda.core import Program, ProgramOptions

    from vvs.runtime.device.cuda import CudaDevice

    compiled = Program(SOURCE, "c++", ProgramOptions(arch=arch)).compile("cubin")
    device = CudaDevice({"add": bytes(compiled.code)})
    yield device
    device.close()


def ints(device: CudaDevice, stream: object, value: int) -> DeviceArray:
    array = DeviceArray(device.allocate(4 * N).address, (N,), "int32")
    device.upload(stream, array, np.full(N, value, np.int32))
    return array


def test_kernels_copies_and_events_between_streams(device: CudaDevice) -> None:
    first, second, event = device.stream(), device.stream(), device.event()
    total, one = ints(device, first, 1), ints(device, first, 1)
    pinned = device.pinned((N,), "int32")
    device.issue(first, Launch(ADD, (total, one, N)))
    device.record(event, first)
    device.wait(second, event)
    device.issue(second, Launch(ADD, (total, total, N)))
    device.issue(second, Copy(pinned.array, total))
    device.issue(second, Fill(total))
    device.synchronise(second)
    np.testing.assert_array_equal(pinned.read(), np.full(N, 4))
    assert device.download(second, total).sum() == 0
    device.free_pinned(pinned)


def test_a_captured_program_has_its_nodes_and_repeats_them(device: CudaDevice) -> None:
    stream = device.stream()
    total, one, backup = (ints(device, stream, value) for value in (0, 1, 0))
    program = (Launch(ADD, (total, one, N)), Copy(backup, total), Launch(ADD, (total, backup, N)))
    device.begin_capture(stream)
    for call in program:
        device.issue(stream, call)
    graph = device.end_capture(stream)
    assert graph.nodes == len(program)
    for _ in range(3):
        device.replay(stream, graph)
    np.testing.assert_array_equal(device.download(stream, total), np.full(N, 14))
    graph.close()
    device.begin_capture(stream)
    device.abort_capture(stream)
    device.issue(stream, Fill(total))
    assert device.download(stream, total).sum() == 0


def test_programs_are_introduced_once(device: CudaDevice) -> None:
    stream = device.stream()
    total, one, backup = (ints(device, stream, value) for value in (0, 1, 0))
    runner = ProgramRunner(device, stream, total, total, backup)
    for _ in range(4):
        runner.run("count", (Launch(ADD, (total, one, N)),))
    np.testing.assert_array_equal(device.download(stream, total), np.full(N, 4))
    assert runner.graphs == 1
    runner.close()


def test_flows_run_what_kernels_decide(arch: str) -> None:
    from vvs.runtime.device.cuda_backend import open_gpu
    from vvs.runtime.device.flow_trial import try_flow

    device = open_gpu()
    reason = device.why_no_flows()
    if reason:
        pytest.skip(f"this machine assembles no flow: {reason}")
    try_flow(device)
    device.close()


def test_more_memory_than_there_is_is_a_sentence(device: CudaDevice) -> None:
    before = device.free_bytes()
    with pytest.raises(BackendError, match="the GPU ran out of memory while allocating"):
        device.allocate(4 * before)
    memory = device.allocate(1 << 20)
    device.free(memory)
    assert device.free_bytes() == before


def test_the_whole_loop_draws_what_the_cpu_draws(arch: str, tiny_bundle: Path, tmp_path: Path) -> None:
    """With TensorRT engines built here; on random weights any other logit shows."""
    pytest.importorskip("tensorrt_rtx_bindings")
    pytest.importorskip("onnx_ir")
    from vvs.export.tensorrt.builder import build_engines
    from vvs.export.tensorrt.profiles import RequestRange
    from vvs.export.tensorrt.settings import BuildSettings
    from vvs.runtime.bundle import Bundle

    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    settings = BuildSettings("tensorrt-rtx", (arch,), requests=RequestRange(1, 1, 3))
    list(build_engines(Bundle.open(path), settings))
    prompts, modes, seeds = ["a red dress", "blue shirt", "green shoe"], ["ar", "vvs", "eagle"], [3, 4, 5]
    expected = Pipeline.from_bundle(path, threads=1).generate(prompts, modes, seeds)
    forms = ({}, {"cuda_graphs": False}, {"whole_image_graph": True})
    for options in forms:
        drawn = Pipeline.from_bundle(path, "cuda", **options).generate(prompts, modes, seeds)
        np.testing.assert_array_equal(drawn.tokens, expected.tokens)
