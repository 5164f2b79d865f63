"""Where compiled kernels are kept: the user's cache folder, under a name that says what they were made of."""

import hashlib
import os
import tempfile
from pathlib import Path


def folder() -> Path:
    """The folder, which need not exist: ``$XDG_CACHE_HOME/vvs/kernels``, or ``~/.cache/vvs/kernels``."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "vvs" / "kernels"


def key(*parts: str) -> str:
    """A short name for everything that went into a compilation: source, flags, architecture, compiler."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:20]


def temporary_beside(path: Path) -> Path:
    """A new empty file beside ``path``, whose folder is made, to be filled and renamed to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    return Path(name)


def keep(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it."""
    temporary = temporary_beside(path)
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
