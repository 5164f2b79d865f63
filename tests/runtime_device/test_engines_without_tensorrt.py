"""ONNX Runtime and PyTorch under the device-resident loop: on the stand-in, and on a GPU where one is.

ONNX Runtime's CUDA provider is not in the package that tests install, so what drives it is shown on a fake of
the GPU; the binding itself is the one that the stand-in uses.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import pytest

from vvs.errors import BackendError
from vvs.runtime.backends import open_loop
from vvs.runtime.bundle import Bundle
from vvs.runtime.cuda_driver import find_driver
from vvs.runtime.device.array import DeviceArray
from vvs.runtime.device.cuda_backend import open_gpu
from vvs.runtime.device.host import HostDevice
from vvs.runtime.device.loop import DeviceLoop
from vvs.runtime.device.onnxruntime_cuda import CudaProvider, require_provider
from vvs.runtime.device.onnxruntime_engines import element_type
from vvs.runtime.doctor import examine
from vvs.runtime.kernels.host import HostKernels
from vvs.runtime.onnxruntime_graph import CUDA_PROVIDER, ProviderChoice
from vvs.runtime.pipeline import Pipeline

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

PROMPTS = ["a red dress", "blue shirt", "green shoe"]
MODES = ["ar", "vvs", "eagle"]
OWN, LOOPS = 5, 7
"""Handles of ONNX Runtime's stream and of the loop's."""
without_cuda = pytest.mark.skipif(
    CUDA_PROVIDER in ort.get_available_providers(), reason="this onnxruntime was built with CUDA"
)


def tokens_of(path: Path, loop: DeviceLoop) -> np.ndarray:
    return Pipeline(Bundle.open(path), loop).generate(PROMPTS, MODES, 3).tokens


@pytest.fixture(scope="module")
def expected(tiny_bundle: Path) -> np.ndarray:
    return Pipeline.from_bundle(tiny_bundle, threads=1).generate(PROMPTS, MODES, 3).tokens


def test_eager_pytorch_drives_the_loop(
    tiny_models: ModelSet, tiny_bundle: Path, expected: np.ndarray
) -> None:
    from vvs.export.torch_engines import TorchEngines

    bundle, device = Bundle.open(tiny_bundle), HostDevice(HostKernels(), check=True)
    loop = DeviceLoop(device, TorchEngines(tiny_models, "cpu"), bundle, bundle.codebook, graphs=False)
    np.testing.assert_array_equal(tokens_of(tiny_bundle, loop), expected)


def test_bfloat16_is_memory_that_both_can_take() -> None:
    import torch

    from vvs.export.torch_engines import _Exposed, tensor_at

    values = np.array([0x3F80, 0x4000], np.uint16)
    array = DeviceArray(values.ctypes.data, (2,), "bfloat16")
    assert tensor_at(array, torch.device("cpu")).tolist() == [1, 2]
    assert element_type(array) == 16
    assert element_type(DeviceArray(0, (2,), "float16")) == np.float16
    exposed = _Exposed(array).__cuda_array_interface__
    assert exposed == {"shape": (2,), "typestr": "<u2", "data": (array.address, False), "version": 3}


class FakeDriver:
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[int]:
            self.calls.append((name, *arguments))
            return (0,)

        return call


@pytest.fixture
def gpu() -> SimpleNamespace:
    handles = iter((11, 12))
    return SimpleNamespace(
        driver=FakeDriver(),
        stream=lambda: SimpleNamespace(handle=OWN),
        event=lambda: SimpleNamespace(handle=next(handles)),
    )


def test_onnxruntime_works_between_what_was_and_what_will_be_queued(gpu: Any) -> None:
    provider = CudaProvider(gpu, cuda_graphs=True)
    with provider.ordered(LOOPS):
        gpu.driver.calls.append(("run",))
    assert gpu.driver.calls == [
        ("cuEventRecord", 11, LOOPS),
        ("cuStreamWaitEvent", OWN, 11, 0),
        ("run",),
        ("cuEventRecord", 12, OWN),
        ("cuStreamWaitEvent", LOOPS, 12, 0),
    ]


def test_every_execution_has_a_graph_of_its_own(gpu: Any) -> None:
    options = CudaProvider(gpu, cuda_graphs=True).run_options(4)
    assert options.get_run_config_entry("gpu_graph_id") == "4"
    assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1"


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_a_graph_that_cannot_be_captured_is_opened_plainly(gpu: Any, cuda_graphs: bool) -> None:
    tried: list[ProviderChoice] = []

    def opener(choice: ProviderChoice) -> Any:
        tried.append(choice)
        if choice.options["enable_cuda_graph"] == "1":
            raise BackendError("the model has control flow nodes")
        return SimpleNamespace(session=SimpleNamespace(get_providers=lambda: [CUDA_PROVIDER]))

    CudaProvider(gpu, cuda_graphs=cuda_graphs).open("draft_tree.t", opener)
    assert [choice.options["enable_cuda_graph"] for choice in tried] == (["1", "0"] if cuda_graphs else ["0"])
    assert all(choice.options["user_compute_stream"] == str(OWN) for choice in tried)


def test_a_silent_fall_to_the_cpu_is_refused(gpu: Any) -> None:
    fallen = SimpleNamespace(session=SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"]))
    with pytest.raises(BackendError, match=r"cannot load its CUDA libraries and would run 'target' on CPU"):
        CudaProvider(gpu, cuda_graphs=False).open("target", lambda choice: fallen)  # type: ignore[arg-type]


@without_cuda
def test_a_package_without_cuda_is_a_sentence(tiny_bundle: Path) -> None:
    with pytest.raises(BackendError, match=r"has .*CPUExecutionProvider; replace it .*onnxruntime-gpu"):
        open_loop(Bundle.open(tiny_bundle), "onnxruntime-cuda")
    found = {finding.subject: finding for finding in examine().findings}
    assert not found["onnxruntime on CUDA"].ok
    assert "pip install onnxruntime-gpu" in found["onnxruntime on CUDA"].advice


@pytest.fixture
def ready() -> None:
    driver = find_driver()
    if driver is None or not driver.gpus:
        pytest.skip("needs an NVIDIA GPU, and this machine has none")
    pytest.importorskip("cuda.core")


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_onnxruntime_on_a_gpu_draws_what_the_cpu_draws(
    ready: None, tiny_bundle: Path, expected: np.ndarray, cuda_graphs: bool
) -> None:
    try:
        require_provider()
    except BackendError as error:
        pytest.skip(str(error))
    pipeline = Pipeline.from_bundle(tiny_bundle, "onnxruntime-cuda", cuda_graphs=cuda_graphs)
    for _ in range(2):  # captured, then replayed
        np.testing.assert_array_equal(pipeline.generate(PROMPTS, MODES, 3).tokens, expected)


@pytest.mark.gpu
def test_pytorch_on_a_gpu_draws_what_the_cpu_draws(
    ready: None, tiny_models: ModelSet, tiny_bundle: Path, expected: np.ndarray
) -> None:
    import torch

    from vvs.export.torch_engines import TorchEngines

    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")
    bundle, device = Bundle.open(tiny_bundle), open_gpu()
    try:
        loop = DeviceLoop(device, TorchEngines(tiny_models, "cuda"), bundle, bundle.codebook, graphs=False)
        np.testing.assert_array_equal(tokens_of(tiny_bundle, loop), expected)
    finally:
        for module in (tiny_models.target, tiny_models.drafter, tiny_models.vq):
            module.to("cpu")  # other tests share the models
        device.close()
