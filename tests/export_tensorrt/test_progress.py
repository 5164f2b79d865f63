"""Progress of nested phases, and Ctrl-C."""

from __future__ import annotations

import os
import signal

import pytest

from vvs.export.tensorrt.progress import Phases, cancel_on_interrupt


def test_nested_phases_make_one_share() -> None:
    shown: list[float] = []
    phases = Phases(lambda share, _: shown.append(round(share, 3)))
    phases.start("all", None, 2)
    phases.start("part", "all", 4)
    assert phases.step("part", 0)
    assert phases.step("part", 1)
    phases.finish("part")
    assert phases.step("all", 0)
    assert shown == [0.0, 0.0, 0.125, 0.25, 0.5]


def test_ctrl_c_stops_at_the_next_step() -> None:
    phases = Phases(lambda *_: None)
    phases.start("all", None, 2)
    # Whoever starts the tests may have SIGINT ignored, as shells do for jobs in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted() -> None:
        with cancel_on_interrupt(phases):
            os.kill(os.getpid(), signal.SIGINT)
            assert not phases.step("all", 0)

    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
