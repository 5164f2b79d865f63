"""Files and folders are whole or not there, and everyone may read them whom the user lets read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vvs.runtime.whole_file import whole_file, whole_folder

ROOMS = ("vvs", "export", "runtime", "benchmarks", "cli")
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def private(path: Path) -> None:
    """Writes as some libraries do: a file of its own that only its owner may read, renamed."""
    other = path.with_name("other")
    other.write_bytes(b"private")
    other.chmod(0o600)
    other.replace(path)


def plain(path: Path) -> None:
    path.write_bytes(b"plain")


def program(path: Path) -> None:
    path.write_bytes(b"#!/bin/sh")
    path.chmod(0o777 & ~os.umask(os.umask(0o022)))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("write", [plain, private])
def test_files_have_the_usual_permissions(tmp_path: Path, umask: int, write: Callable[[Path], None]) -> None:
    path = tmp_path / "above" / "file"
    for _ in range(2):  # also in place of an older one
        with whole_file(path) as temporary:
            write(temporary)
        assert mode(path) == 0o666 & ~umask
        path.chmod(0o600)
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_folders_have_the_usual_permissions(tmp_path: Path, umask: int) -> None:
    for _ in range(2):
        with whole_folder(tmp_path / "folder") as temporary:
            plain(temporary / "file")
        assert mode(tmp_path / "folder") == 0o777 & ~umask
        assert mode(tmp_path / "folder" / "file") == 0o666 & ~umask
        (tmp_path / "folder").chmod(0o700)


def test_programs_stay_programs(tmp_path: Path) -> None:
    with whole_file(tmp_path / "run") as temporary:
        program(temporary)
    assert os.access(tmp_path / "run", os.X_OK)


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_what_failed_leaves_what_was_there(tmp_path: Path, whole: Callable[[Path], object]) -> None:
    if whole is whole_file:
        plain(tmp_path / "it")
    else:
        (tmp_path / "it").mkdir()
    before = (tmp_path / "it").stat().st_ino
    with pytest.raises(KeyboardInterrupt), whole(tmp_path / "it"):  # type: ignore[attr-defined]
        raise KeyboardInterrupt
    (left,) = tmp_path.iterdir()
    assert left.stat().st_ino == before


def test_everything_is_written_this_way() -> None:
    """A temporary name of one's own would bring its library's permissions back."""
    own = re.compile(r"mkstemp|mkdtemp|os\.rename|os\.replace|temporary\.(replace|rename)\(")
    found = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if own.search(path.read_text(encoding="utf-8"))
    }
    assert found == {str(Path("runtime", "whole_file.py"))}
