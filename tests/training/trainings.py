"""Running ``vvs train-drafter`` in tests."""

from __future__ import annotations

from collections.abc import Callable

from typer.testing import Result

Train = Callable[..., Result]
QUICK = ("--steps", 1, "--batch", 2, "--held-out", 2, "--decode", 0, "--threads", 1)


def sentence(result: Result) -> str:
    """The last line on stderr, which says what is wrong."""
    line: str = result.stderr.strip().splitlines()[-1]
    assert line.startswith("vvs: "), result.stderr
    return line
