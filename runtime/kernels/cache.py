"""Where compiled kernels are kept: the user's cache folder, under a name that says what they were made of."""

import hashlib
import os
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
