"""Configurations, modes and the text form of rules, policies and selectors."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vvs.acceptance import ACCEPTANCE_RULES, Exact, Lantern, LanternPlusPlus
from vvs.config import GenerationConfig, override
from vvs.errors import SettingsError
from vvs.modes import MODES, configure
from vvs.registry import Registry
from vvs.sampling import Sampling
from vvs.selection import PATH_SELECTORS, MostConfidentPath, RandomPath
from vvs.skipping import SKIP_POLICIES, Dynamic, Never, Uniform

RULES = st.one_of(
    st.just(Exact()),
    st.builds(Lantern, st.integers(1, 5000), st.floats(0, 2)),
    st.builds(LanternPlusPlus, st.integers(1, 5000), st.floats(1.001, 50)),
)
POLICIES = st.one_of(
    st.just(Never()), st.builds(Uniform, st.integers(2, 99)), st.builds(Dynamic, st.floats(-1, 1))
)
SELECTORS = st.one_of(st.builds(RandomPath, st.booleans()), st.builds(MostConfidentPath, st.booleans()))
SAMPLINGS = st.builds(Sampling, st.floats(0, 9), st.integers(0, 9999), st.floats(0, 1, exclude_min=True))


@given(
    st.builds(
        GenerationConfig,
        SAMPLINGS,
        st.floats(0, 20),
        st.just("k10-d4-n58"),
        RULES,
        POLICIES,
        SELECTORS,
        draft_cfg_ratio=st.floats(0, 4),
    )
)
def test_a_configuration_survives_json(config: GenerationConfig) -> None:
    text = json.dumps(config.describe(), allow_nan=False)
    assert GenerationConfig.parse(json.loads(text)) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uniform:2", Uniform(2)),
        ("uniform:interval=3", Uniform(3)),
        (" dynamic ", Dynamic()),
        ("dynamic:0.7", Dynamic(0.7)),
        ("never", Never()),
    ],
)
def test_policies_as_text(text: str, expected: object) -> None:
    assert SKIP_POLICIES.parse(text) == expected


def test_rules_and_selectors_as_text() -> None:
    assert ACCEPTANCE_RULES.parse("lantern:k=32,delta=0.1") == Lantern(32, 0.1)
    assert ACCEPTANCE_RULES.parse("lantern: 32, delta = 0.1") == Lantern(32, 0.1)
    assert ACCEPTANCE_RULES.parse("lantern++:lam=2") == LanternPlusPlus(lam=2.0)
    assert PATH_SELECTORS.parse("random:truncate=false") == RandomPath(truncate=False)
    assert ACCEPTANCE_RULES.describe(Lantern(32, 0.1)) == "lantern:k=32,delta=0.1"
    assert ACCEPTANCE_RULES.describe(Lantern(np.int64(32), np.float64(0.1))) == "lantern:k=32,delta=0.1"  # type: ignore[arg-type]
    assert SKIP_POLICIES.describe(Never()) == "never"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sometimes", "unknown skip policy 'sometimes'; there is never, uniform, share, dynamic"),
        ("", "unknown skip policy ''"),
        ("uniform", "'uniform': uniform also needs interval"),
        ("uniform:two", "interval of uniform is 'two', but it must be an integer"),
        ("uniform:1024.5", "must be an integer"),
        ("uniform:1", "uniform interval is 1, but it must be an integer >= 2"),
        ("uniform:period=2", "'period=2' is not a setting of uniform, which takes interval"),
        ("uniform:2,3", "'3' is not a setting of uniform"),
        ("uniform:2,interval=3", "interval is given twice"),
        ("never:2", "'2' is not a setting of never, which takes no settings"),
        ("dynamic:threshold=", "is not a setting of dynamic"),
        ("share:1", "share of skipped steps is 1.0, but it must be a finite number >= 0 and < 1"),
        ("share:nan", "share of skipped steps is nan, but"),
    ],
)
def test_text_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SKIP_POLICIES.parse(text)


def test_a_new_kind_is_a_small_class_and_one_registration() -> None:
    registry: Registry[object] = Registry("thing")

    @registry.register("mine")
    @dataclass(frozen=True)
    class Mine:
        level: float = 0.5
        loud: bool = False

    assert registry.parse("mine:0.25,loud=true") == Mine(0.25, True)
    assert registry.describe(Mine()) == "mine:level=0.5,loud=false"
    assert registry.names == ("mine",)
    with pytest.raises(SettingsError, match="loud of mine is 'yes', but it must be true or false"):
        registry.parse("mine:loud=yes")
    with pytest.raises(SettingsError, match="already"):
        registry.register("mine")(Mine)
    with pytest.raises(SettingsError, match="not a registered thing"):
        registry.describe(3)


def test_the_modes() -> None:
    tree = "k10-d4-n58"
    assert list(MODES) == ["ar", "eagle", "lantern", "lantern++", "vvs"]
    assert configure("ar") == GenerationConfig()
    assert configure("eagle", tree) == GenerationConfig(tree=tree)
    assert configure("lantern", tree).acceptance == Lantern()
    assert configure("lantern++", tree).acceptance == LanternPlusPlus()
    vvs = configure("vvs", tree, skipping="dynamic:0.6", temperature=0.9, top_k=100, cfg_scale=4)
    assert vvs == GenerationConfig(Sampling(0.9, 100), 4, tree, Lantern(), Dynamic(0.6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: configure("turbo"), "unknown mode 'turbo'; there is ar, eagle, lantern, lantern"),
        (lambda: configure("eagle"), "mode 'eagle' drafts, so it needs the name of a draft tree"),
        (lambda: configure("ar", "k2-d1-n4"), "mode 'ar' drafts nothing, but tree is 'k2-d1-n4'"),
        (lambda: configure("ar", skipping="uniform:2"), "uniform:interval=2 but there is no draft tree"),
        (lambda: configure("ar", acceptance="lantern"), "lantern:k=64,delta=0.2 but there is no draft tree"),
        (lambda: configure("ar", heat=1), "unknown setting 'heat'; there is temperature, top_k"),
        (lambda: configure("ar", cfg_scale=-1), "cfg_scale is -1, but it must be a finite number >= 0"),
        (lambda: configure("ar", cfg_scale=float("inf")), "cfg_scale is inf"),
        (lambda: configure("ar", draft_cfg_ratio="much"), "draft_cfg_ratio is 'much', but it must be"),
        (lambda: configure("vvs", tree="k2-d1-n4", draft_cfg_ratio=-0.5), "draft_cfg_ratio is -0.5, but it"),
        (lambda: GenerationConfig(tree=""), "tree is '', but it must be the name"),
        (lambda: GenerationConfig(acceptance="exact"), "'exact' is not a registered acceptance rule"),
        (lambda: GenerationConfig(sampling=1.0), "sampling is 1.0, but it must be a Sampling"),
    ],
)
def test_what_contradicts_itself_is_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SettingsError, match=message):
        make()


def test_override_keeps_the_rest() -> None:
    config = GenerationConfig(Sampling(0.5, 7), 2, "t", Lantern(3), Uniform(4), RandomPath(False))
    changed = override(config, {"top_p": 0.9, "skipping": Never()})
    assert changed == GenerationConfig(Sampling(0.5, 7, 0.9), 2, "t", Lantern(3), Never(), RandomPath(False))


def test_a_skip_tree_needs_a_plan() -> None:
    planned = GenerationConfig(tree="narrow", skip_tree="wide", skipping=Uniform(2))
    assert GenerationConfig.parse(planned.describe()) == planned
    for wrong in ({"tree": "narrow", "skipping": Dynamic()}, {"tree": "narrow"}, {}):
        with pytest.raises(SettingsError, match="skip_tree is 'wide', but only a mode"):
            GenerationConfig(skip_tree="wide", **wrong)  # type: ignore[arg-type]
