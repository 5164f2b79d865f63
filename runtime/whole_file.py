"""Files and folders that appear under their name only when complete, with the permissions a user expects."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXECUTABLE = 0o111


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A new file beside ``path`` that takes its place at the end, or vanishes if anything goes wrong.

    Missing folders above it are made. Whatever writes it, it gets the permissions of any new file of the user
    (the umask); some libraries make files that only their owner may read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    temporary.touch(exist_ok=False)
    try:
        usual = temporary.stat().st_mode
        yield temporary
        # What a compiler has made executable stays so.
        temporary.chmod(usual | (temporary.stat().st_mode & EXECUTABLE))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any, indent: int = 2) -> None:
    """Write plain data as indented JSON, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(data, indent=indent) + "\n", encoding="utf-8")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder beside ``path`` that takes its place at the end, or vanishes if anything goes wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    old = temporary.with_suffix(".old")
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            path.rename(old)
        try:
            temporary.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
    finally:
        for leftover in (temporary, old):
            shutil.rmtree(leftover, ignore_errors=True)


def _beside(path: Path) -> Path:
    """A name beside ``path`` that nothing else takes."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
