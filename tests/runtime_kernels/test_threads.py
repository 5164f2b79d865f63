"""Blocks of real threads: the same results, no race under ThreadSanitizer, and a missing barrier is seen."""

from __future__ import annotations

import copy

import pytest
from prepared_batch import assert_same, prepared, recorded_launch, results

from vvs.errors import BackendError
from vvs.runtime.device.calls import Kernel
from vvs.runtime.kernels.host_threads import run_threaded
from vvs.runtime.kernels.table import ACCEPT, KERNELS, PROPOSE, SIMILARITY

THREADS = [3, 8, 33]
BROKEN = ("VVS_OMIT_REMOVE_BARRIER", "VVS_OMIT_PROPOSE_BARRIER")


@pytest.mark.parametrize("threads", THREADS)
def test_real_threads_agree_with_one_and_do_not_race(threads: int) -> None:
    launches = [recorded_launch(kernel, threads) for kernel in KERNELS]
    ran = run_threaded(launches)
    assert ran.races == 0, ran.report[:4000]
    for kernel, launch in zip(KERNELS, launches, strict=True):
        assert_same(kernel, results(kernel, launch.arguments), rtol=1e-12)


@pytest.mark.parametrize("kernel", [ACCEPT, PROPOSE])
def test_a_missing_barrier_is_seen(kernel: Kernel) -> None:
    ran = run_threaded([recorded_launch(kernel, 4)], defines=BROKEN)
    assert ran.races > 0
    assert kernel.name in ran.report


def test_every_kernel_writes_something_here() -> None:
    """Otherwise comparing threads with one another would compare nothing."""
    for kernel in KERNELS:
        state, extra = prepared(kernel)
        before = copy.deepcopy({**state.arrays, **extra})
        state.launch(kernel, **extra)
        after = {**state.arrays, **extra}
        changed = [
            parameter.name
            for parameter in kernel.parameters
            if parameter.writes and (after[parameter.name] != before[parameter.name]).any()
        ]
        assert changed, kernel.name


def test_a_run_that_fails_for_another_reason_is_a_sentence() -> None:
    launch = recorded_launch(SIMILARITY, 2)
    unknown = launch._replace(kernel=Kernel("vvs_unknown", launch.kernel.parameters))
    with pytest.raises(BackendError, match="failed on real threads"):
        run_threaded([unknown])


def test_kernels_touch_only_memory_that_is_there() -> None:
    launches = [recorded_launch(kernel, 4) for kernel in KERNELS]
    run_threaded(launches, sanitizer="address")
    for kernel, launch in zip(KERNELS, launches, strict=True):
        assert_same(kernel, results(kernel, launch.arguments), rtol=1e-12)


def test_an_array_that_is_too_small_is_seen() -> None:
    launch = recorded_launch(SIMILARITY, 2)
    *arrays, similarity, nodes, longest_path, code_dim = launch.arguments
    short = launch._replace(arguments=(*arrays, similarity[:1], nodes, longest_path, code_dim))
    with pytest.raises(BackendError, match="heap-buffer-overflow"):
        run_threaded([short], sanitizer="address")
