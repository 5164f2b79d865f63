"""Compiling the kernels, for GPUs without one and for the host; what fails is a sentence."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from device_state import DeviceState
from test_accept import CODEBOOK

from vvs.acceptance import ACCEPTANCE_RULES, Exact
from vvs.config import GenerationConfig
from vvs.errors import BackendError, SettingsError
from vvs.runtime.device.calls import Kernel
from vvs.runtime.kernels import cache, host, nvrtc, sources
from vvs.runtime.kernels.nvrtc import Cubin, compile_cubin, read_report
from vvs.runtime.kernels.state import StateSizes, encode_settings, state_arrays
from vvs.runtime.kernels.table import KERNELS, SIMILARITY

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

SPILL_BOUND = 0
"""Bytes per thread that a kernel may spill. NVRTC 13 spills none."""

THREADS = 512
"""Threads per block that every kernel must be launchable with."""

REGISTER_FILE = 65536
SHARED_BYTES = 48 * 1024
"""What every architecture gives a block."""


@pytest.fixture(scope="module")
def _nvrtc() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")
    nvrtc.load_nvrtc()


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_compile_for_every_architecture(arch: str) -> None:
    cubin = compile_cubin(arch)
    assert cubin.code[:4] == b"\x7fELF"
    assert all(kernel.name.encode() in cubin.code for kernel in KERNELS)
    assert set(cubin.modules) == {kernel.name for kernel in KERNELS}
    for name, resources in cubin.resources.items():
        assert resources.spill_bytes <= SPILL_BOUND, name
        assert 0 < resources.registers * THREADS <= REGISTER_FILE, name
        assert resources.shared_bytes <= SHARED_BYTES, name


@pytest.mark.usefixtures("_nvrtc")
def test_what_is_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = compile_cubin("sm_80")
    assert sorted(path.suffix for path in cache.folder().iterdir()) == [".cubin", ".txt"]
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: pytest.fail("it was compiled again"))
    assert compile_cubin("sm_80") == first


@pytest.mark.usefixtures("_nvrtc")
def test_a_cache_that_cannot_be_written_does_not_matter_to_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vvs").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled = Cubin("sm_80", b"code", "")
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: compiled)
    assert compile_cubin("sm_80") is compiled


@pytest.mark.usefixtures("_nvrtc")
def test_an_architecture_that_is_not_known_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BackendError, match=r"cannot compile for 'sm_20'; it knows .*sm_80"):
        compile_cubin("sm_20")


def test_a_missing_nvrtc_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> SimpleNamespace:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(nvrtc, "import_module", nothing)
    with pytest.raises(BackendError, match=r"install it with `pip install 'vvs-toolkit\[cuda\]'`"):
        compile_cubin("sm_80")


SECTION = """ptxas info    : Compiling entry function '{}' for 'sm_80'
ptxas         .     24 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem, 476 bytes cmem[0]
"""


def test_a_report_is_read() -> None:
    resources = read_report("".join(SECTION.format(kernel.name) for kernel in KERNELS))
    assert set(resources) == {kernel.name for kernel in KERNELS}
    assert set(resources.values()) == {nvrtc.Resources(40, 512, 24, 24)}


def test_a_report_without_a_kernel_is_a_sentence() -> None:
    with pytest.raises(BackendError, match="says nothing of vvs_commit"):
        read_report("".join(SECTION.format(k.name) for k in KERNELS if k.name != "vvs_commit"))


# --- The host -------------------------------------------------------------------------------------


def test_a_host_without_a_compiler_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BackendError, match=r"none of g\+\+, clang\+\+, c\+\+ is to be found; install one"):
        host.find_compiler()
    monkeypatch.setenv("CXX", "nowhere")
    with pytest.raises(BackendError, match="CXX names 'nowhere', which is to be found"):
        host.find_compiler()


def test_a_cache_that_cannot_be_written_is_a_sentence_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vvs").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BackendError, match="set XDG_CACHE_HOME to a folder that can be written"):
        host.built("int main() {}", "", ())


def test_an_unknown_kernel_is_a_sentence() -> None:
    with pytest.raises(BackendError, match="there is no kernel vvs_nothing"):
        host.HostKernels().launch(Kernel("vvs_nothing", ()), (1, 1), 1, 0, ())


@pytest.mark.parametrize(
    ("python", "wrong"),
    [
        ("static_assert(CURSOR == 9", "static_assert(CURSOR == 8"),
        ("void(const int*, const int*, const int*, const int*, const double*,", "void(const int*,"),
    ],
)
def test_a_source_that_differs_from_python_does_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, wrong: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = sources.checked_source()
    assert text.count(python) == 1
    with pytest.raises(BackendError, match="static assertion failed"):
        host.built(text.replace(python, wrong), ".so", ("-fsyntax-only",))
    assert not any(cache.folder().iterdir())


def test_host_kernels_compile_where_nothing_is_kept_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    state = DeviceState([GenerationConfig()], CODEBOOK, nodes=1, longest_path=1)
    values = [
        state[parameter.name].ctypes.data if parameter.pointer else state.scalars[parameter.name]
        for parameter in SIMILARITY.parameters
    ]
    host.HostKernels().launch(SIMILARITY, (1, 1), 256, 0, tuple(values))
    assert [path.suffix for path in cache.folder().iterdir()] == [".so"]


def test_every_source_is_compiled() -> None:
    text = sources.source()
    for path in sources.FOLDER.glob("*.cu*"):
        assert f'#line 1 "{path.name}"' in text, path.name


def test_every_source_is_packaged() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["vvs.runtime.kernels"]
    texts = {path for path in sources.FOLDER.iterdir() if path.is_file()}
    own = {path for path in texts if path.suffix in (".py", ".md")}
    assert {path for pattern in patterns for path in sources.FOLDER.glob(pattern)} == texts - own


# --- The state ------------------------------------------------------------------------------------

SIZES = StateSizes(
    requests=2, vocabulary=11, image_tokens=9, guidance=2, nodes=5, longest_path=3, feature_bytes=8
)


def test_the_state_has_room_for_the_longest_run() -> None:
    arrays = state_arrays(SIZES)
    assert arrays["known"].shape == (2, 12)
    assert arrays["kept"].shape == (2, 5)
    assert arrays["feature_cache"].shape == (2, 2, 3, 8)
    assert arrays["uniforms"].shape == (2, 1 + 9 * 6)


def test_a_tree_too_large_for_shared_memory_is_a_sentence() -> None:
    with pytest.raises(SettingsError, match="257 nodes, 3 on one path, is too large"):
        StateSizes(2, 11, 9, 2, 257, 3, 8)


def test_a_rule_of_ones_own_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Exact):
        pass

    monkeypatch.setattr(ACCEPTANCE_RULES, "_types", {"exact": Exact, "own": Own})
    config = GenerationConfig(tree="tree", acceptance=Own())
    with pytest.raises(SettingsError, match=r"the acceptance rule own has no kernel.*--backend onnxruntime"):
        encode_settings([config], ["tree"])


def test_settings_are_encoded_in_the_dtypes_of_the_state() -> None:
    choices, reals = encode_settings([GenerationConfig()] * 2, [])
    arrays = state_arrays(SIZES)
    assert (choices.shape, str(choices.dtype)) == arrays["choices"]
    assert (reals.shape, str(reals.dtype)) == arrays["reals"]
    assert np.isfinite(reals).all()


@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_another_compiler_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "clang++")
    assert os.path.basename(host.find_compiler()) == "clang++"  # noqa: PTH119
    test_host_kernels_compile_where_nothing_is_kept_yet(tmp_path, monkeypatch)
