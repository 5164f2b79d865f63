"""Files that appear under their name only when they are complete."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file that takes the place of ``path`` at the end, or vanishes if anything goes wrong."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        temporary.chmod(0o644)
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
