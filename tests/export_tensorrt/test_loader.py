"""Opening engines: what this machine lacks is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from vvs.engine_record import EngineRecord
from vvs.errors import BackendError, EngineError
from vvs.manifest import Manifest
from vvs.runtime.bundle import Bundle
from vvs.runtime.cuda_driver import Driver, Gpu
from vvs.runtime.tensorrt_loader import architecture, load_engine, load_pair, refusal, wanted_by
from vvs.runtime.tensorrt_log import Messages, plain
from vvs.runtime.tensorrt_package import TensorRT

GPU = Gpu("NVIDIA Something", "sm_89")


def said(*errors: str) -> Messages:
    messages = Messages()
    messages.errors.extend(errors)
    return messages


@pytest.mark.parametrize(
    ("driver", "error", "sentence"),
    [
        (None, "cudaError 35", "needs an NVIDIA driver for CUDA 13, and this machine has none; install one"),
        (
            Driver((12, 4), (GPU,)),
            "cudaError 35",
            "runs CUDA 12.4, but TensorRT for RTX 1.7.1.116 needs CUDA 13",
        ),
        (Driver((13, 0), ()), "", "there is a driver but no GPU; check `nvidia-smi`"),
        (
            Driver((13, 0), (GPU,)),
            "cudaError 2: out of memory",
            "NVIDIA Something has not enough free memory",
        ),
        (
            Driver((13, 0), (GPU,)),
            "the magic tag is wrong",
            "the magic tag is wrong; rebuild it with `vvs build",
        ),
    ],
)
def test_every_refusal_is_one_sentence(
    records: dict[str, EngineRecord],
    fake_package: TensorRT,
    driver: Driver | None,
    error: str,
    sentence: str,
) -> None:
    message = str(refusal(fake_package, driver, records["target"], said(*[error] if error else [])))
    assert message.startswith("the engine of target for sm_89 cannot be opened: ")
    assert sentence in message
    assert "\n" not in message


def test_messages_lose_their_source_locations() -> None:
    text = (
        "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (Network must have "
        "at least one output. In validate at /_src/optimizer/api/network.cpp:3810)"
    )
    assert plain(text) == "API Usage Error (Network must have at least one output.)"


def test_the_gpu_at_hand_decides_which_engine_is_wanted(
    manifest: Manifest, fake_package: TensorRT, tmp_path: Path
) -> None:
    bundle = Bundle(tmp_path, manifest)
    assert architecture(bundle, fake_package, Driver((13, 0), (GPU,))) == "sm_89"
    with pytest.raises(EngineError, match="has no engines; build them with `vvs build"):
        architecture(bundle, fake_package, None)


def test_only_version_compatible_plans_open_in_other_versions(
    records: dict[str, EngineRecord], fake_package: TensorRT
) -> None:
    newer = TensorRT("tensorrt-rtx", "tensorrt_rtx", "1.8", api=None)
    found = records["target"].identity
    assert wanted_by(newer, found).version == "1.8"
    found.flags["version-compatible"] = True  # type: ignore[index]
    assert wanted_by(newer, found) == found
    assert wanted_by(TensorRT("tensorrt", "tensorrt", "11", api=None), found).builder == "tensorrt"


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_a_real_engine_is_refused_in_one_sentence(built: object) -> None:
    bundle: Bundle = built.bundle  # type: ignore[attr-defined]
    for call in (
        lambda: load_engine(bundle, "tensorrt-rtx", "encode_prompt"),
        lambda: load_pair(bundle, "tensorrt-rtx", "tiny"),
    ):
        with pytest.raises((BackendError, EngineError)) as error:
            call()
        assert "\n" not in str(error.value)
    with pytest.raises(BackendError, match=r"needs an NVIDIA driver for CUDA 13, and this machine has none"):
        load_engine(bundle, "tensorrt-rtx", "encode_prompt")
