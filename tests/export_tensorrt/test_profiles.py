"""Profiles: counted by hand, and sentences about shapes that cannot work."""

from __future__ import annotations

import dataclasses
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from vvs.engine_record import ShapeRange
from vvs.errors import SettingsError
from vvs.export.tensorrt.profiles import GivenShapes, RequestRange, parse_shapes, profiles_of
from vvs.geometry import Geometry
from vvs.manifest import Manifest
from vvs.modes import MODES
from vvs.runtime.device.run_plan import RunPlan, RunShape
from vvs.runtime.settings import resolve
from vvs.tree_shape import TreeShape

ALL = RequestRange(1, 2, 4)
RECIPES = sorted((Path(__file__).resolve().parents[2] / "engines").glob("*.toml"))


def recommending(manifest: Manifest, recipe: Path) -> Manifest:
    """A manifest with the trees and recommendations of a recipe."""
    from vvs.export.recipe import load_recipe

    made = load_recipe(recipe)
    trees = {tree.name: tree for tree in made.trees}
    drafter = manifest.graphs["draft_tree.small"]
    drafters = {f"draft_tree.{name}": drafter for name in trees}
    return dataclasses.replace(
        manifest,
        trees=trees,
        default_tree=made.default_tree or next(iter(trees)),
        graphs={**manifest.graphs, **drafters},
        defaults=made.defaults,
    )


def rows_of(manifest: Manifest, graph: str, tensor: str) -> list[tuple[int, int]]:
    """Least and greatest number of rows of every profile."""
    ranges = [profile.shapes[tensor] for profile in profiles_of(manifest, graph, ALL)]
    return [(shape.min[1], shape.max[1]) for shape in ranges]


def test_the_target_has_a_profile_for_each_use(manifest: Manifest) -> None:
    profiles = profiles_of(manifest, "target", ALL)
    rows = {p.use: tuple(s[1] for s in dataclasses.astuple(p.shapes["embeds"])) for p in profiles}
    # 9 nodes; a skipped step leaves 1..3 chain rows, since the longest path has 4 nodes.
    assert rows == {
        "prefill": (6, 6, 6),
        "ar": (1, 1, 1),
        "verify.small": (9, 9, 9),
        "verify-after-skip.small": (10, 12, 12),
    }


def test_batches_count_guidance_rows(manifest: Manifest) -> None:
    verify = profiles_of(manifest, "target", ALL)[2].shapes
    assert verify["ancestors"] == ShapeRange((2, 9, 9), (4, 9, 9), (8, 9, 9))
    assert verify["cfg_scale"] == ShapeRange((1,), (2,), (4,))
    assert verify["past_k_0"] == ShapeRange((2, 2, 48, 16), (4, 2, 48, 16), (8, 2, 48, 16))


def test_the_drafter_takes_a_prompt_or_a_path(manifest: Manifest) -> None:
    profiles = profiles_of(manifest, "draft_tree.small", RequestRange(1, 1, 1))
    assert [(p.use, str(p.shapes["features"])) for p in profiles] == [
        ("after-prefill", "min 2x6x32 opt 2x6x32 max 2x6x32"),
        ("after-step", "min 2x1x32 opt 2x4x32 max 2x4x32"),
    ]


def test_a_tree_may_follow_a_deeper_one(manifest: Manifest) -> None:
    """Skipped steps may draft a tree of their own, so chains and drafter rows come from any tree."""
    trees = {"small": manifest.trees["small"], "deep": TreeShape(2, 5, 12)}
    drafter = manifest.graphs["draft_tree.small"]
    both = dataclasses.replace(manifest, trees=trees, graphs={**manifest.graphs, "draft_tree.deep": drafter})
    rows = {p.use: p.shapes["embeds"] for p in profiles_of(both, "target", ALL)}
    assert rows["verify-after-skip.small"] == ShapeRange((2, 10, 32), (4, 12, 32), (8, 15, 32))
    after_step = profiles_of(both, "draft_tree.small", ALL)[1].shapes["features"]
    assert after_step == ShapeRange((2, 1, 32), (4, 4, 32), (8, 7, 32))


def test_a_chain_holds_as_many_skips_in_a_row_as_are_recommended(manifest: Manifest) -> None:
    vvs = {"modes": {"vvs": {"policy": "share:0.75"}}}  # three skips after each verified step
    for recommended in (
        dataclasses.replace(manifest, defaults=vvs),
        dataclasses.replace(manifest, device_defaults={"some GPU": vvs}),
    ):
        verify = next(p for p in profiles_of(recommended, "target", ALL) if "after-skip" in p.use)
        assert verify.shapes["embeds"] == ShapeRange((2, 10, 32), (4, 18, 32), (8, 18, 32))


@pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.stem for recipe in RECIPES])
def test_profiles_hold_every_pass_of_the_recommended_modes(manifest: Manifest, recipe: Path) -> None:
    """Alone and side by side in one batch, as the device-resident loop pads them."""
    pytest.importorskip("torch")
    recommended = recommending(manifest, recipe)
    target = rows_of(recommended, "target", "embeds")
    configs = [resolve(recommended, mode) for mode in MODES]
    for batch in combinations_with_replacement(configs, 2):
        plan = RunPlan(recommended, RunShape.of(recommended, batch), neighbours=0)
        for rows in {plan.verify_rows(chain=False), plan.verify_rows(chain=True)}:
            assert any(least <= rows <= most for least, most in target)
        for tree in plan.shape.trees:
            drafter = rows_of(recommended, f"draft_tree.{tree}", "features")
            assert any(least <= plan.sizes.draft_capacity <= most for least, most in drafter)


def test_uses_of_the_same_shapes_share_a_profile(manifest: Manifest) -> None:
    one_row = dataclasses.replace(manifest, geometry=Geometry(6, 96, 8, 1, 2, 2, 16, 32, 2, 12))
    assert profiles_of(one_row, "target", ALL)[0].use == "prefill+ar"


def test_given_shapes_replace_the_profiles(manifest: Manifest) -> None:
    opt = parse_shapes("opt-shapes", "features:2x3x32,root:1,past_length:2,past_k:2x2x48x16,past_v:2x2x48x16")
    least = parse_shapes("min-shapes", "features:2x1x32")
    (profile,) = profiles_of(manifest, "draft_tree.small", ALL, GivenShapes(least, opt, {}))
    assert profile.use == "given"
    assert profile.shapes["features"] == ShapeRange((2, 1, 32), (2, 3, 32), (2, 3, 32))


@pytest.mark.parametrize(
    ("least", "best", "sentence"),
    [
        ({}, {"wrong": (1, 36)}, "shapes are given for 'wrong', but the inputs of decode_image are tokens"),
        ({}, {}, "--opt-shapes lacks the input 'tokens' of decode_image, whose shape is Rx36"),
        ({}, {"tokens": (1, 35)}, "shape 1x35 is given for 'tokens' of decode_image, but it must fit Rx36"),
        ({"tokens": (3, 36)}, {"tokens": (2, 36)}, "do not satisfy 1 <= min <= opt <= max"),
    ],
)
def test_says_which_given_shape_is_wrong(
    manifest: Manifest, least: dict[str, tuple[int, ...]], best: dict[str, tuple[int, ...]], sentence: str
) -> None:
    with pytest.raises(SettingsError) as error:
        profiles_of(manifest, "decode_image", ALL, GivenShapes(least, best, {}))
    assert sentence in str(error.value)


def test_one_symbol_is_one_number(manifest: Manifest) -> None:
    text = "features:2x3x32,root:1,past_length:4,past_k:2x2x48x16,past_v:2x2x48x16"
    with pytest.raises(SettingsError, match="give B as 2 in 'features' and as 4 in 'past_length'"):
        profiles_of(manifest, "draft_tree.small", ALL, GivenShapes({}, parse_shapes("opt-shapes", text), {}))
    text = text.replace("past_length:4", "past_length:2").replace("root:1", "root:2")
    with pytest.raises(SettingsError, match="give B as 2 and R as 2, but a request has 2 engine rows"):
        profiles_of(manifest, "draft_tree.small", ALL, GivenShapes({}, parse_shapes("opt-shapes", text), {}))


@pytest.mark.parametrize("text", ["embeds", "embeds:2xx3", "embeds:2x3;positions:2", "embeds:-1x3"])
def test_refuses_shapes_that_trtexec_would_not_read(text: str) -> None:
    with pytest.raises(SettingsError, match="must look like embeds:2x59x64"):
        parse_shapes("min-shapes", text)


@pytest.mark.parametrize("text", ["", "0", "2:1:4", "1:2", "a", "-1"])
def test_refuses_a_batch_that_is_no_range(text: str) -> None:
    with pytest.raises(SettingsError, match="--batch is"):
        RequestRange.parse(text)


def test_refuses_more_requests_than_the_bundle_holds(manifest: Manifest) -> None:
    with pytest.raises(SettingsError, match="--batch goes to 5, but the bundle holds at most 4 requests"):
        profiles_of(manifest, "target", RequestRange(1, 1, 5))
