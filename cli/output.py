"""Output: JSON to a file or stdout, the tables of ``inspect`` and ``doctor``, and logs on standard error."""

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vvs.runtime.whole_file import whole_file

STDOUT = "-"


def write_json(data: Any, to: str = STDOUT) -> None:
    """Write JSON to a file, whole or not at all, or to stdout when ``to`` is ``-``."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if to == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    with whole_file(Path(to)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from vvs.benchmarks.report import show

    table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(_escape, row))
    show(table, Console())


def _escape(value: object) -> str:
    from rich.markup import escape

    return escape(str(value))


class _Echo(logging.Handler):
    """Shows messages on whatever standard error is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{self.format(record)}\n")


def show_log(name: str) -> None:
    """Show on standard error what a logger has to say; a second call changes nothing."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, _Echo) for handler in logger.handlers):
        logger.addHandler(_Echo())
