"""The begin kernel: the first root, and the counters of a request after the prefill."""

from __future__ import annotations

import numpy as np
from device_state import DeviceState
from hypothesis import given, settings
from hypothesis import strategies as st
from test_accept import CODEBOOK, V, samplings

from vvs.config import GenerationConfig
from vvs.progress import Progress
from vvs.runtime.kernels.state import Counter, Fault, Phase
from vvs.runtime.kernels.table import BEGIN
from vvs.sampling import Sampling, process, sample

PROMPT = 3


def begun(
    configs: list[GenerationConfig], logits: np.ndarray, numbers: list[float], tokens: int
) -> DeviceState:
    state = DeviceState(configs, CODEBOOK, nodes=1, longest_path=1, image_tokens=tokens, prompt=PROMPT)
    state["counters"][...] = 77  # of the run before
    for i, number in enumerate(numbers):
        state.give_uniforms(i, [number])
    state.launch(BEGIN, logits=logits, rows=logits.shape[1])
    return state


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(samplings, st.floats(0, 1, exclude_max=True)), min_size=1, max_size=3), st.data())
def test_the_first_root_is_sampled_from_the_last_row(
    requests: list[tuple[Sampling, float]], data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = np.round(rng.normal(size=(len(requests), PROMPT, V)) * 2).astype(np.float32)
    logits[:, :-1] = np.nan
    configs = [GenerationConfig(sampling) for sampling, _ in requests]
    state = begun(configs, logits, [number for _, number in requests], 64)
    for i, (sampling, number) in enumerate(requests):
        distribution = process(logits[i, -1], sampling)
        root = int(distribution.argmax()) if sampling.greedy else sample(distribution, number)
        progress = Progress.after_prefill(PROMPT)
        expected = dict.fromkeys(Counter, 0) | {
            Counter.PHASE: Phase.PREFILLED,
            Counter.TARGET_ROWS: progress.target_rows,
            Counter.KNOWN: 1,
            Counter.PENDING: PROMPT,
            Counter.KEPT: PROMPT,
            Counter.CURSOR: int(not sampling.greedy),
        }
        assert {column: state.counter(i, column) for column in Counter} == expected
        assert state["known"][i, 0] == root


def test_an_image_of_one_token_is_complete_at_once() -> None:
    state = begun([GenerationConfig()], np.zeros((1, 1, V), np.float32), [0.5], 1)
    assert state.counter(0, Counter.PHASE) == Phase.COMPLETE


def test_logits_without_a_finite_maximum_are_a_fault() -> None:
    logits = np.zeros((2, 1, V), np.float32)
    logits[0, 0, 3] = np.nan
    for temperature in (0.0, 1.0):
        configs = [GenerationConfig(Sampling(temperature))] * 2
        state = begun(configs, logits, [0.5, 0.5], 9)
        assert [state.counter(i, Counter.FAULT) for i in range(2)] == [Fault.LOGITS, Fault.NONE]
