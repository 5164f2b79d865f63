"""From a mode, a bundle's recommendations and options to one configuration."""

from __future__ import annotations

from typing import Any

import pytest

from vvs.acceptance import Exact, Lantern
from vvs.errors import BundleError, SettingsError
from vvs.geometry import Geometry
from vvs.manifest import ConditioningSpec, FileSpec, GraphSpec, Manifest
from vvs.runtime.settings import default_mode, resolve
from vvs.selection import MostConfidentPath
from vvs.skipping import Never, Uniform
from vvs.tree_shape import TreeShape

TREES = {"small": TreeShape(2, 1, 4), "large": TreeShape(4, 2, 12)}


def manifest(**defaults: Any) -> Manifest:
    names = ("encode_prompt", "target", "decode_image", *(f"draft_tree.{tree}" for tree in TREES))
    graphs = {name: GraphSpec(f"{name}.onnx", (), ()) for name in names}
    return Manifest(
        name="m",
        family="llamagen",
        precision="fp32",
        geometry=Geometry(4, 16, 4, 2, 1, 1, 8, 8, 2, 8),
        conditioning=ConditioningSpec("class", classes=10),
        trees=TREES,
        default_tree="small",
        max_requests=4,
        graphs=graphs,
        files={graph.file: FileSpec(1, "00") for graph in graphs.values()},
        versions={},
        source="",
        defaults=defaults,
    )


def test_what_holds_for_every_mode_holds_for_every_mode() -> None:
    bundle = manifest(cfg_scale=2.5, top_k=7, tree="large", selector="confident")
    ar, eagle = resolve(bundle, "ar"), resolve(bundle, "eagle")
    assert (ar.cfg_scale, ar.sampling.top_k, ar.tree) == (2.5, 7, None)
    assert (eagle.cfg_scale, eagle.sampling.top_k, eagle.tree) == (2.5, 7, "large")
    assert eagle.selector == MostConfidentPath()
    assert resolve(manifest(), "eagle").tree == "small"


def test_a_recommended_rule_never_turns_one_mode_into_another() -> None:
    bundle = manifest(acceptance="lantern:k=3,delta=0.1", policy="uniform:4")
    assert resolve(bundle, "eagle").acceptance == Exact()
    assert resolve(bundle, "eagle").skipping == Never()
    assert resolve(bundle, "lantern").acceptance == Lantern(3, 0.1)
    assert resolve(bundle, "vvs").skipping == Uniform(4)


def test_settings_of_a_single_mode_have_the_last_word_before_options() -> None:
    bundle = manifest(
        acceptance="lantern:k=3,delta=0.1",
        cfg_scale=2.0,
        modes={"vvs": {"acceptance": "exact", "policy": "uniform:3", "tree": "large"}, "ar": {"top_k": 5}},
    )
    vvs = resolve(bundle, "vvs")
    assert (vvs.acceptance, vvs.skipping, vvs.tree, vvs.cfg_scale) == (Exact(), Uniform(3), "large", 2.0)
    assert resolve(bundle, "lantern").acceptance == Lantern(3, 0.1)
    assert resolve(bundle, "ar").sampling.top_k == 5
    assert resolve(bundle, "vvs", policy="uniform:2", tree="small").skipping == Uniform(2)
    assert resolve(bundle, "vvs", policy=None).skipping == Uniform(3)


def test_the_mode_itself_is_recommended_too() -> None:
    assert default_mode(manifest()) == "vvs"
    assert default_mode(manifest(mode="eagle")) == "eagle"
    assert resolve(manifest(mode="eagle")).skipping == Never()


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"modes": {"warp": {}}}, "unknown mode 'warp'"),
        ({"modes": {"vvs": {"policy": "uniform:1"}}}, "uniform interval is 1"),
        ({"sharpness": 3}, "unknown setting 'sharpness'"),
    ],
)
def test_wrong_recommendations_are_the_bundles_fault(defaults: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        resolve(manifest(**defaults), "vvs")


def test_wrong_options_are_the_users() -> None:
    with pytest.raises(SettingsError, match="unknown setting 'sharpness'"):
        resolve(manifest(), "vvs", sharpness=3)
    with pytest.raises(SettingsError, match="unknown mode 'warp'"):
        resolve(manifest(), "warp")


def test_a_recommended_skip_tree_is_dropped_where_nothing_is_planned_or_drafted_in_it() -> None:
    bundle = manifest(modes={"vvs": {"policy": "uniform:2", "skip_tree": "large"}})
    assert resolve(bundle, "vvs").skip_tree == "large"
    assert resolve(bundle, "vvs", policy="uniform:5").skip_tree == "large"
    assert resolve(bundle, "vvs", policy="dynamic:0.5").skip_tree is None
    with pytest.raises(SettingsError, match="leave it out"):
        resolve(bundle, "vvs", policy="dynamic:0.5", skip_tree="large")
