"""What a deployer meets before a GPU draws anything: refusals of the backend ``cuda``, one sentence each."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vvs.engine_record import EngineRecord
from vvs.errors import BackendError, EngineError, VvsError
from vvs.runtime.bundle import Bundle
from vvs.runtime.cuda_driver import Driver, Gpu
from vvs.runtime.device import cuda, cuda_backend, cuda_errors
from vvs.runtime.device.cuda_errors import told
from vvs.runtime.device.tensorrt_engines import TensorRTEngines, fitting_profile
from vvs.runtime.engine_file import read_record, record_file
from vvs.runtime.pipeline import Pipeline

ADA = Gpu("Some Ada", "sm_89")


def refusal_of(bundle: Path, **options: Any) -> str:
    with pytest.raises(VvsError) as error:
        Pipeline.from_bundle(bundle, "cuda", verify=False, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def with_driver(monkeypatch: pytest.MonkeyPatch, driver: Driver | None) -> None:
    pytest.importorskip("cuda.core")
    monkeypatch.setattr(cuda_errors, "find_driver", lambda: driver)


@pytest.mark.parametrize(
    ("driver", "sentence"),
    [
        (None, r"needs an NVIDIA driver for CUDA \d+, and this machine has none; install one, or run"),
        (
            Driver((12, 4), (ADA,)),
            r"the driver runs CUDA 12\.4, but the backend 'cuda' needs CUDA 1[3-9]; update",
        ),
        (Driver((99, 0), ()), r"there is an NVIDIA driver but no GPU; check `nvidia-smi`"),
        (
            Driver((99, 0), (Gpu("Some Volta", "sm_70"),)),
            r"has no engines for sm_70, none at all; build them with `vvs build .* --arch sm_70`",
        ),
    ],
)
def test_what_the_machine_lacks(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, driver: Driver | None, sentence: str
) -> None:
    with_driver(monkeypatch, driver)
    assert re.search(sentence, refusal_of(tiny_bundle))


def test_packages_that_cannot_be_imported(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core")

    def refuse(name: str) -> None:
        raise ImportError(f"lib{name}.so: cannot open shared object file")

    monkeypatch.setattr(cuda, "import_module", refuse)
    assert "install them with `pip install 'vvs-toolkit[cuda]'`" in refusal_of(tiny_bundle)


def test_tensorrt_that_is_not_installed(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_driver(monkeypatch, Driver((99, 0), (ADA,)))
    try:
        import tensorrt  # noqa: F401
    except ImportError:
        message = refusal_of(tiny_bundle, tensorrt="tensorrt")
        assert message.startswith(
            "TensorRT is not installed, but the backend 'tensorrt' needs it; install it"
        )
    else:
        pytest.skip("TensorRT is installed")
    assert "--backend is 'tensorflow'" in refusal_of(tiny_bundle, tensorrt="tensorflow")


def test_engines_say_which_gpu_and_which_tensorrt_they_are_for(built: object) -> None:
    bundle: Bundle = built.bundle  # type: ignore[attr-defined]
    assert cuda_backend.built_with(bundle, "sm_89") == "tensorrt-rtx"
    with pytest.raises(EngineError, match=r"no engines for sm_75, only for sm_120, sm_89; build them with"):
        cuda_backend.built_with(bundle, "sm_75")


def test_a_foreign_engine_is_refused_before_it_is_opened(built: object, tmp_path: Path) -> None:
    path = Path(shutil.copytree(built.bundle.path, tmp_path / "bundle"))  # type: ignore[attr-defined]
    engine = path / "target.sm_89.engine"
    record = read_record(engine)
    identity = dataclasses.replace(record.identity, version="0.9")
    changed = dataclasses.replace(record, identity=identity, digest=identity.digest)
    record_file(engine).write_text(json.dumps(changed.to_dict()))
    for other in path.glob("*.sm_120.*"):
        other.unlink()
    device = SimpleNamespace(stream=lambda: None)
    with pytest.raises(
        EngineError, match=r"target\.sm_89\.engine is foreign: .*0\.9.*rebuild it with `vvs build"
    ):
        TensorRTEngines(Bundle.open(path), "tensorrt-rtx", device)  # type: ignore[arg-type]


def test_the_profile_of_a_shape_is_found_or_named(records: dict[str, EngineRecord]) -> None:
    target = records["target"]

    def shapes(R: int, T: int) -> dict[str, tuple[int, ...]]:
        return {"embeds": (2 * R, T, 32), "positions": (2 * R, T), "cfg_scale": (R,)}

    uses = [target.identity.profiles[fitting_profile(target, shapes(2, T))].use for T in (6, 1, 9, 12)]
    assert uses == ["prefill", "ar", "verify.small", "verify-after-skip.small"]
    with pytest.raises(
        EngineError, match=r"target has no profile for embeds of shape 4x100x32 \(prefill: min"
    ):
        fitting_profile(target, shapes(2, 100))
    with pytest.raises(EngineError, match=r"no profile for embeds of shape 10x9x32 .*--batch"):
        fitting_profile(target, shapes(5, 9))


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        (
            "CUDA_ERROR_OUT_OF_MEMORY: The API call failed",
            "the GPU ran out of memory while drawing; free some",
        ),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: sticky", "the GPU was lost while drawing .*start the process again"),
        ("CUDA_ERROR_INVALID_VALUE: what", "CUDA failed while drawing: CUDA_ERROR_INVALID_VALUE: what"),
    ],
)
def test_what_cuda_raises_is_told_in_one_sentence(raised: str, sentence: str) -> None:
    with pytest.raises(BackendError, match=sentence), told("drawing"):
        raise RuntimeError(raised)


def test_a_sentence_of_ours_stays_as_it_is() -> None:
    with pytest.raises(EngineError, match=r"^stale$"), told("drawing"):
        raise EngineError("stale")
