"""Memory that is not there is a sentence; a fault of ours stays one that can be traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import typer

from vvs.cli.errors import FAILED, guarded


def asks_python() -> None:
    bytearray(1 << 60)


def asks_torch() -> None:
    pytest.importorskip("torch").empty(1 << 50)


@pytest.mark.parametrize("command", [asks_python, asks_torch])
def test_memory_that_is_not_there(command: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        guarded(command)()
    assert ended.value.exit_code == FAILED
    assert capsys.readouterr().err == "vvs: there is not enough memory; a smaller --batch needs less\n"


def test_other_faults_are_not_hidden() -> None:
    def command() -> None:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        guarded(command)()
