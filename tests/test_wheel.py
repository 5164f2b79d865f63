"""The wheel: every module and data file of the packages, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
DATA = frozenset({".py", ".tsv", ".cu", ".cuh", ".cpp", ".hpp", ".typed"})


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Files of a wheel, built from a copy, since setuptools builds beside its sources."""
    pytest.importorskip("setuptools")
    work = tmp_path_factory.mktemp("wheel")
    source = work / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in {*(Path(folder).parts[0] for folder in FOLDERS.values()), "tests"}:
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "results")
        )
    (source / "engines" / "demo").mkdir(parents=True)
    (source / "engines" / "demo" / "weights.bin").write_bytes(b"not for a wheel")
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps")
    subprocess.run((*command, "--no-build-isolation", "-w", work, "."), cwd=source, check=True)
    (wheel,) = work.glob("*.whl")
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_module_and_data_file_is_in_it(names: set[str]) -> None:
    wanted = {
        f"{package.replace('.', '/')}/{path.name}"
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).iterdir()
        if path.suffix in DATA
    }
    assert {"vvs/py.typed", "vvs/runtime/imagenet_classes.tsv", "vvs/runtime/kernels/kernels.cu"} <= wanted
    assert wanted <= names


def test_nothing_else_is_in_it(names: set[str]) -> None:
    packages = tuple(package.replace(".", "/") for package in FOLDERS)
    about = f"{PROJECT['project']['name'].replace('-', '_')}-{PROJECT['project']['version']}.dist-info/"
    stray = {name for name in names if Path(name).parent.as_posix() not in packages}
    assert {name for name in stray if not name.startswith(about)} == set()
    assert f"{about}licenses/LICENSE" in names


def test_every_folder_of_code_is_a_package() -> None:
    """A new one that nobody named in pyproject.toml would be missing from the wheel."""
    rooms = {Path(folder).parts[0] for folder in FOLDERS.values()}
    found = {
        path.parent.relative_to(ROOT).as_posix() for room in rooms for path in (ROOT / room).rglob("*.py")
    }
    assert (
        found
        == set(FOLDERS.values())
        == {FOLDERS[name] for name in PROJECT["tool"]["setuptools"]["packages"]}
    )
