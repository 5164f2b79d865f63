"""The loop over the toy engine: counts, caches, features, batching, cancelling and every mode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import ToyEngine, ToySession, toy_logits

from vvs.acceptance import Exact, Lantern
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.decoding import Decoder
from vvs.errors import SettingsError
from vvs.modes import MODES, configure
from vvs.sampling import Sampling
from vvs.selection import MostConfidentPath, RandomPath
from vvs.skipping import SKIP_POLICIES, Dynamic, StepView, Uniform
from vvs.statistics import StepKind
from vvs.step import StepEvent
from vvs.tree_shape import TreeShape
from vvs.uniforms import UniformStream

SMALL, DEEP = TreeShape(2, 1, 4), TreeShape(3, 3, 14)
COUPLED = TreeShape(3, 2, 9, coupled=True)
GREEDY = Sampling(temperature=0)


@dataclass(frozen=True)
class Always:
    """A policy of our own: skip whenever it is allowed, also many times in a row."""

    def wants(self, view: StepView) -> bool:
        return True


@dataclass(frozen=True)
class TwoInThree:
    """A policy of our own: two skips, then one verified step."""

    def wants(self, view: StepView) -> bool:
        return view.step % 3 != 0


@pytest.fixture(autouse=True)
def _own_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**SKIP_POLICIES._types, "always": Always, "two-in-three": TwoInThree}
    monkeypatch.setattr(SKIP_POLICIES, "_types", known)


def codebook_of(vocabulary: int) -> Codebook:
    latents = np.random.default_rng(vocabulary).normal(size=(vocabulary, 4))
    return Codebook.from_latents(latents, vocabulary - 1)


def engine_of(grid: int = 5, vocabulary: int = 7, guidance_rows: int = 2) -> ToyEngine:
    return ToyEngine(grid, vocabulary, (SMALL, DEEP), guidance_rows)


def decode(
    engine: ToyEngine, configs: list[GenerationConfig], seeds: list[int], prompts: list[int]
) -> tuple[np.ndarray, list[StepEvent], tuple]:
    events: list[StepEvent] = []
    decoder = Decoder(engine, codebook_of(engine.geometry.vocabulary))
    streams = [UniformStream(seed) for seed in seeds]
    tokens, statistics = decoder.generate({"prompt": np.array(prompts)}, configs, streams, events.append)
    return tokens, events, statistics


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.integers(0, 99), st.booleans())
def test_planned_skips_may_draft_a_tree_of_their_own(interval: int, seed: int, deep_skips: bool) -> None:
    """The toy engine checks every row; the trees of the steps are the ones that were asked for."""
    narrow, wide = (SMALL, DEEP) if deep_skips else (DEEP, SMALL)
    config = GenerationConfig(tree=narrow.name, skip_tree=wide.name, skipping=Uniform(interval))
    other = GenerationConfig(tree=narrow.name)
    tokens, events, _ = decode(engine_of(), [config, other], [seed, seed], [1, 2])
    records = [record for event in events for record in event.records if record.request == 0]
    assert any(record.kind is StepKind.SKIP for record in records)
    for record in records:
        expected = wide if record.kind is StepKind.SKIP else narrow
        assert record.tree.nodes == expected.nodes
    alone, _, _ = decode(engine_of(), [config], [seed], [1])
    np.testing.assert_array_equal(alone[0], tokens[0])


def test_drafting_may_have_a_guidance_scale_of_its_own() -> None:
    """Beside a request that drafts with the target's."""
    engine = engine_of()
    configs = [
        configure("vvs", SMALL.name, acceptance="exact", cfg_scale=2.0, draft_cfg_ratio=1.75),
        configure("eagle", SMALL.name, cfg_scale=1.5),
    ]
    decode(engine, configs, [0, 0], [1, 2])
    assert engine.sessions[0].scales == {"draft": {3.5, 1.5}, "target": {2.0, 1.5}}


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 99), st.sampled_from([Sampling(), Sampling(0.7, top_k=4, top_p=0.9)]))
def test_by_noise_exact_modes_draw_the_image_of_plain_ar_in_fewer_passes(
    seed: int, sampling: Sampling
) -> None:
    """With every tree, coupled or not, in one batch; skipped verification alone may draw others."""
    engine = ToyEngine(5, 7, [SMALL, DEEP, COUPLED])
    trees = (None, SMALL.name, DEEP.name, COUPLED.name)
    configs = [GenerationConfig(sampling, tree=tree, coupled=True) for tree in trees]
    tokens, _, (ar, *others) = decode(engine, configs, [seed] * 4, [3] * 4)
    assert (tokens == tokens[0]).all()
    assert sum(each.forward_passes for each in others) < 3 * ar.forward_passes


def test_by_noise_a_request_takes_one_number_of_its_stream() -> None:
    _, events, _ = decode(
        ToyEngine(5, 7, [COUPLED]), [GenerationConfig(tree=COUPLED.name, coupled=True)], [0], [1]
    )
    assert {record.uniforms_used for event in events for record in event.records} == {1}


def test_a_coupled_tree_needs_coupled_sampling() -> None:
    with pytest.raises(
        SettingsError, match=r"drafted with the target's noise, but coupled is false; set coupled"
    ):
        decode(ToyEngine(5, 7, [COUPLED]), [GenerationConfig(tree=COUPLED.name)], [0], [1])


def test_greedy_requests_draw_nothing_by_noise() -> None:
    engine = ToyEngine(5, 7, [COUPLED])
    greedy = Sampling(temperature=0)
    configs = [GenerationConfig(greedy), GenerationConfig(greedy, tree=COUPLED.name, coupled=True)]
    tokens, events, _ = decode(engine, configs, [0, 0], [1, 1])
    assert (tokens[0] == tokens[1]).all()
    assert {record.uniforms_used for event in events for record in event.records} == {0}


def test_plain_ar_needs_one_pass_per_token_and_never_drafts() -> None:
    engine = engine_of()
    tokens, events, (statistics,) = decode(engine, [configure("ar")], [3], [1])
    assert tokens.shape == (1, 25)
    assert statistics.forward_passes == 25
    assert statistics.step_compression == 1
    assert engine.sessions[0].drafted == [[]]
    assert [event.known[0] for event in events] == list(range(1, 26))
    assert engine.sessions[0].closed


def test_greedy_ar_follows_the_likeliest_tokens() -> None:
    tokens, _, _ = decode(engine_of(), [configure("ar", temperature=0)], [0], [5])
    expected: list[int] = []
    while len(expected) < 25:
        expected.append(int(toy_logits(7, 5, tuple(expected), 3.0).argmax()))
    assert tokens[0].tolist() == expected


@pytest.mark.parametrize("tree", [SMALL.name, DEEP.name])
@pytest.mark.parametrize("guidance_rows", [1, 2])
@pytest.mark.parametrize("prompt", range(5))
def test_greedy_eagle_equals_greedy_ar_in_fewer_passes(tree: str, guidance_rows: int, prompt: int) -> None:
    engine = engine_of(guidance_rows=guidance_rows)
    configs = [configure("ar", temperature=0), configure("eagle", tree, temperature=0)]
    tokens, _, (ar, eagle) = decode(engine, configs, [0, 0], [prompt, prompt])
    assert (tokens[0] == tokens[1]).all()
    assert eagle.forward_passes < ar.forward_passes


def test_a_run_that_skips_commits_every_token_it_emitted() -> None:
    engine = engine_of(grid=6)
    config = configure("vvs", DEEP.name, acceptance=Lantern(2, 0.3))
    tokens, events, (statistics,) = decode(engine, [config], [11], [4])
    assert statistics.skips > 0
    committed = engine.sessions[0].committed[0]
    assert committed == tokens[0, : len(committed)].tolist()
    drafted = engine.sessions[0].drafted[0]
    assert drafted == tokens[0, : len(drafted)].tolist()
    records = [record for event in events for record in event.records]
    assert [record.step for record in records] == list(range(len(records)))
    emitted = sum(record.accept + (record.kind is StepKind.VERIFY) for record in records)
    assert emitted + 1 >= 36


@pytest.mark.parametrize("policy", [Always(), TwoInThree(), Uniform(2), Uniform(3), Dynamic(-1)])
@pytest.mark.parametrize("selector", [RandomPath(), RandomPath(truncate=False), MostConfidentPath()])
def test_skips_extend_the_chain_until_a_verified_step_fills_it(policy, selector) -> None:  # type: ignore[no-untyped-def]
    engine = engine_of(grid=6)
    config = GenerationConfig(tree=DEEP.name, skipping=policy, selector=selector)
    tokens, events, (statistics,) = decode(engine, [config], [2], [9])
    kinds = [record.kind for event in events for record in event.records]
    assert StepKind.SKIP in kinds
    in_a_row = "".join("s" if kind is StepKind.SKIP else "v" for kind in kinds)
    assert ("ss" in in_a_row) == isinstance(policy, Always | TwoInThree)
    committed = engine.sessions[0].committed[0]
    assert committed == tokens[0, : len(committed)].tolist()
    assert statistics.steps == len(kinds)
    assert statistics.forward_passes == 1 + kinds.count(StepKind.VERIFY)


def test_no_step_is_skipped_before_six_tokens_are_emitted() -> None:
    config = GenerationConfig(tree=SMALL.name, skipping=Always())
    _, events, _ = decode(engine_of(), [config], [0], [0])
    emitted = 0
    for event in events[1:]:
        (record,) = event.records
        assert (record.kind is StepKind.SKIP) == (emitted > 5)
        emitted += record.accept + (record.kind is StepKind.VERIFY)


MIXED = [
    configure("ar"),
    configure("eagle", SMALL.name, temperature=0),
    configure("eagle", DEEP.name, cfg_scale=1.5),
    configure("lantern", DEEP.name, acceptance=Lantern(3, 0.4), top_k=5),
    configure("lantern++", SMALL.name, acceptance="lantern++:k=2,lam=2", top_p=0.9),
    configure("vvs", DEEP.name, acceptance=Exact()),
    configure("vvs", SMALL.name, acceptance=Lantern(2, 0.2), skipping=Uniform(3)),
    configure("vvs", DEEP.name, acceptance=Exact(), skipping=Dynamic(-1), temperature=0.7),
]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(MIXED), st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=6
    ),
    st.sampled_from([1, 2]),
)
def test_a_batch_gives_each_request_the_tokens_it_gets_alone(
    requests: list[tuple[GenerationConfig, int, int]], guidance_rows: int
) -> None:
    engine = engine_of(grid=4, guidance_rows=guidance_rows)
    configs, seeds, prompts = (list(column) for column in zip(*requests, strict=True))
    together, events, statistics = decode(engine, configs, seeds, prompts)
    for i, (config, seed, prompt) in enumerate(requests):
        alone, own_events, (own,) = decode(engine, [config], [seed], [prompt])
        assert (alone[0] == together[i]).all()
        assert own.accepted == statistics[i].accepted
        used = [record.uniforms_used for event in events for record in event.records if record.request == i]
        assert used == [record.uniforms_used for event in own_events for record in event.records]


def test_requests_that_finish_early_take_no_further_part() -> None:
    engine = engine_of()
    _, events, (ar, vvs) = decode(engine, [MIXED[0], MIXED[5]], [1, 1], [1, 1])
    assert vvs.steps < ar.steps
    assert [record.request for record in events[-1].records] == [0]
    assert events[-1].known == (25, 25)


def test_closing_the_generator_frees_the_session() -> None:
    engine = engine_of()
    decoder = Decoder(engine, codebook_of(7))
    events = decoder.run({"prompt": np.array([1])}, [configure("ar")], [UniformStream(0)])
    assert not engine.sessions  # nothing is allocated before the first event is asked for
    next(events)
    next(events)
    assert not engine.sessions[0].closed
    events.close()
    assert engine.sessions[0].closed


def test_an_engine_that_fails_frees_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ToySession, "verify", fail)
    engine = engine_of()
    with pytest.raises(RuntimeError, match="out of memory"):
        decode(engine, [configure("ar")], [0], [0])
    assert engine.sessions[0].closed


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_decodes(mode: str) -> None:
    tree = SMALL.name if MODES[mode].drafts else None
    relaxed = {"lantern": "lantern:k=2", "lantern++": "lantern++:k=2", "vvs": "lantern:k=2"}
    overrides = {"acceptance": relaxed[mode]} if mode in relaxed else {}
    tokens, _, _ = decode(engine_of(), [configure(mode, tree, **overrides)], [0], [0])
    assert ((tokens >= 0) & (tokens < 7)).all()


@pytest.mark.parametrize(
    ("configs", "streams", "conditioning", "message"),
    [
        ([], [], {}, "0 configurations and 0 streams"),
        ([configure("ar")], [], {}, "1 configurations and 0 streams"),
        ([configure("eagle", "nope")], [0], {}, "unknown draft tree 'nope'; this engine drafts k2-d1-n4"),
        ([configure("lantern", SMALL.name)], [0], {}, "65 nearest codes per token are needed"),
        ([configure("ar")], [0], {"prompt": np.zeros(2)}, r"'prompt' has shape \(2,\), but must be \[1"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(configs, streams, conditioning, message) -> None:  # type: ignore[no-untyped-def]
    engine = engine_of()
    with pytest.raises(SettingsError, match=message):
        Decoder(engine, codebook_of(7)).run(conditioning, configs, [UniformStream(seed) for seed in streams])
    assert not engine.sessions


def test_a_shared_stream_and_a_foreign_codebook_are_refused() -> None:
    stream = UniformStream(0)
    with pytest.raises(SettingsError, match="share a stream"):
        Decoder(engine_of(), codebook_of(7)).run({}, [configure("ar")] * 2, [stream, stream])
    with pytest.raises(SettingsError, match="8 entries, but the engine's vocabulary is 7"):
        Decoder(engine_of(), codebook_of(8))


def test_the_times_of_the_spans_add_up() -> None:
    _, events, (statistics,) = decode(engine_of(), [MIXED[5]], [1], [1])
    total = sum(event.times.total for event in events)
    assert sum(statistics.seconds.values()) == pytest.approx(total, rel=1e-6)
    assert all(seconds > 0 for seconds in statistics.outside_engines.values())
    assert sum(statistics.outside_engines.values()) < total
