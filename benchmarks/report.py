"""Report: rows of figures as a terminal table, as Markdown, and as files written whole or not at all."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vvs.runtime.whole_file import whole_file

UNBOUNDED = 10_000
"""Characters a line where no terminal bounds it."""
Rows = Sequence[Mapping[str, str]]
"""Cells by column heading; every row has the same headings."""


def print_table(rows: Rows, title: str, console: Console) -> None:
    """Show rows in the terminal; the first column is left-aligned, numbers are right-aligned."""
    table = Table(title=title, title_justify="left")
    for i, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*map(escape, row.values()))
    show(table, console)


def show(table: Table, console: Console) -> None:
    """Print a table and cut nothing off: cells wrap in a terminal, a file's lines are as long as need be."""
    for column in table.columns:
        column.overflow = "fold"
    wide = console if console.is_terminal else Console(file=console.file, width=UNBOUNDED)
    wide.print(table)


def markdown(rows: Rows) -> str:
    """The same as a Markdown table."""
    headings = list(rows[0])
    lines = [
        "| " + " | ".join(headings) + " |",
        "| --- |" + " ---: |" * (len(headings) - 1),
    ]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name and rename it."""
    with whole_file(path) as temporary:
        temporary.write_text(text)


def write_json(path: Path, data: Any) -> None:
    """Write plain data as indented JSON."""
    write_text(path, json.dumps(data, indent=2) + "\n")
