"""Flags: their meaning, and sentences about those that cannot work."""

from __future__ import annotations

import sys
import types

import pytest

from vvs.errors import BackendError, SettingsError
from vvs.export.tensorrt.flags import BuildFlags, parse_memory_pool
from vvs.export.tensorrt.settings import BuildSettings
from vvs.runtime.cuda_driver import Driver, Gpu
from vvs.runtime.tensorrt_package import TensorRT, load_tensorrt

HERE = Driver((13, 0), (Gpu("a GPU", "sm_90"),))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"builder_optimization_level": 6}, "--builder-optimization-level is 6, but it must lie in 0..5"),
        ({"hardware_compatibility_level": "all"}, "'all', but it must be one of none, ampere+, same-"),
        ({"profiling_verbosity": "loud"}, "'loud', but it must be one of layer-names-only, detailed, none"),
        ({"workspace": 0}, "a workspace of 0 bytes"),
        ({"exclude_lean_runtime": True}, "only plans built with --version-compatible hold one"),
    ],
)
def test_refuses_flags_that_cannot_work(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError) as error:
        BuildFlags(**settings)  # type: ignore[arg-type]
    assert sentence in str(error.value)


def test_flags_are_typed_again_as_they_were() -> None:
    flags = BuildFlags(builder_optimization_level=5, workspace=1024, refit=True, profiling_verbosity="none")
    assert flags.arguments() == (
        " --builder-optimization-level 5 --mem-pool-size workspace:1024B --refit --profiling-verbosity none"
    )
    assert BuildFlags().arguments() == ""


def test_pool_sizes_are_mebibytes_unless_they_say_otherwise() -> None:
    assert parse_memory_pool("workspace:2") == 2 << 20
    assert parse_memory_pool("workspace:1.5G") == 3 << 29
    assert parse_memory_pool("workspace:512B") == 512
    for text in ("2048", "dlaSRAM:1", "workspace:much"):
        with pytest.raises(SettingsError, match="must look like workspace:2048"):
            parse_memory_pool(text)


def test_says_what_a_flavour_lacks(fake_package: TensorRT) -> None:
    with pytest.raises(SettingsError, match=r"TensorRT for RTX 1\.7\.1\.116 has no such thing: it ships no"):
        fake_package.require(["version-compatible"], driver=True)
    fake_package.require(["refit"], driver=True)
    with pytest.raises(SettingsError, match=r"--refit is given, but .* this machine has none; leave out"):
        fake_package.require(["refit"], driver=False)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"arches": ("89",)}, "--arch has '89', but an architecture looks like sm_89"),
        ({"arches": ("sm_89", "sm_89")}, "names an architecture twice"),
    ],
)
def test_refuses_architectures_that_are_none(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        BuildSettings("tensorrt-rtx", **settings)  # type: ignore[arg-type]


def test_tensorrt_builds_for_the_gpu_at_hand_only() -> None:
    package = TensorRT("tensorrt", "tensorrt", "11.4.0", api=None)
    assert BuildSettings("tensorrt").architectures(package, HERE) == ("sm_90",)
    with pytest.raises(
        SettingsError, match=r"sm_89, but TensorRT 11\.4\.0 builds for the GPU at hand, sm_90"
    ):
        BuildSettings("tensorrt", ("sm_89",)).architectures(package, HERE)
    with pytest.raises(BackendError, match="no NVIDIA driver; build on the machine that runs the engine"):
        BuildSettings("tensorrt", ("sm_90",)).architectures(package, None)


def test_tensorrt_for_rtx_names_what_it_builds_for(rtx: TensorRT) -> None:
    assert {"sm_86", "sm_89", "sm_120"} <= set(rtx.architectures)
    with pytest.raises(SettingsError, match=r"--arch has sm_70, but TensorRT for RTX .* builds for sm_"):
        BuildSettings("tensorrt-rtx", ("sm_70",)).architectures(rtx, None)
    with pytest.raises(BackendError, match="no NVIDIA driver; name one with --arch"):
        BuildSettings("tensorrt-rtx").architectures(rtx, None)


def test_missing_packages_come_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(BackendError, match="install it with `pip install tensorrt`"):
        load_tensorrt("tensorrt")
    with pytest.raises(SettingsError, match="'trt', but it must be one of tensorrt, tensorrt-rtx"):
        load_tensorrt("trt")


@pytest.mark.parametrize(("version", "cuda"), [("10.13.3.9", 12), ("11.4.0", 13)])
def test_versions_tell_the_cuda_they_need(monkeypatch: pytest.MonkeyPatch, version: str, cuda: int) -> None:
    module = types.ModuleType("tensorrt")
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    assert load_tensorrt("tensorrt").cuda == cuda
