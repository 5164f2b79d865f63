"""The floor: costs counted by hand, devices, and the commands that show them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from vvs.benchmarks.devices import DATA_SHEETS, Device, data_sheet, probe
from vvs.benchmarks.floor import bundle_model, floor_data, measured_floor, plan_lines, recipe_model
from vvs.benchmarks.roofline import Model, floor_rows, image_seconds, step_costs
from vvs.cli.app import app
from vvs.errors import SettingsError
from vvs.geometry import Geometry
from vvs.runtime.backends import open_engine
from vvs.runtime.bundle import Bundle
from vvs.tree_shape import TreeShape

ENGINES = Path(__file__).parents[2] / "engines"
GEOMETRY = Geometry(4, 100, 8, 8, 3, 2, 8, 16, 2, 8)
MODEL = Model(GEOMETRY, ffn=32, drafter_ffn=24, precision="fp16", trees={"t": TreeShape(2, 1, 4)})
DEVICE = Device("x", bandwidth=1e9, rates={"fp16": 1e9}, source="made up")


def test_costs_are_those_counted_by_hand() -> None:
    costs = {cost.kind: cost for cost in step_costs(MODEL, "t")}
    layer, head, S, D = 4 * 16 * 16 + 3 * 16 * 32, 16 * 100, 24, 16
    assert costs["AR"].bytes == 2 * (3 * layer + head + 2 * 3 * 2 * S * D)
    assert costs["AR"].operations == 2 * 2 * 3 * layer + 2 * head + 4 * 2 * 25 * D * 3
    assert [costs[kind].rows for kind in ("prefill", "AR", "verify", "verify after a skip")] == [8, 1, 5, 7]
    drafter = 5 * 16 * 16 + 3 * 16 * 24
    assert costs["draft"].bytes == 2 * 2 * (drafter + head + 2 * 2 * S * D)
    assert costs["draft"].rows == 3 + 2
    deep = {cost.kind: cost for cost in step_costs(replace(MODEL, drafter_layers=3), "t")}["draft"]
    of_layer = 4 * 16 * 16 + 3 * 16 * 24
    assert deep.bytes - costs["draft"].bytes == 2 * 2 * 2 * (of_layer + 2 * 2 * S * D)
    assert deep.operations - costs["draft"].operations == 2 * (2 * 2 * 5 * of_layer + 4 * 2 * 5 * (S + 5) * D)


@given(st.integers(1, 8))
def test_more_requests_never_cost_less_and_weights_are_read_once(requests: int) -> None:
    one, many = step_costs(MODEL, "t"), step_costs(MODEL, "t", requests)
    for a, b in zip(one, many, strict=True):
        assert b.operations == pytest.approx(requests * a.operations)
        assert a.bytes <= b.bytes <= requests * a.bytes


def test_the_floor_is_the_slower_of_memory_and_compute() -> None:
    costs = step_costs(MODEL, "t")
    fast_memory = Device("m", 1e15, {"fp16": 1e9}, "")
    for cost in costs:
        assert cost.seconds(fast_memory, "fp16") == cost.operations / 1e9
        assert cost.bound(fast_memory, "fp16") == "compute"
    fast_matrix = Device("c", 1e9, {"fp16": 1e15}, "")
    assert all(cost.seconds(fast_matrix, "fp16") == cost.bytes / 1e9 for cost in costs)
    table = floor_rows(costs, DEVICE, "fp16", {"AR": 2 * costs[1].seconds(DEVICE, "fp16")})
    assert table[1]["over the floor"] == "2.0x"
    assert "over the floor" not in table[0]
    with pytest.raises(SettingsError, match="no matrix rate in fp32 for x, only in fp16"):
        DEVICE.rate("fp32")


def test_an_image_is_the_sum_of_its_steps() -> None:
    costs = step_costs(MODEL, "t")
    prefill, ar, verify, after, draft = (cost.seconds(DEVICE, "fp16") for cost in costs)
    plain, drafted = image_seconds(costs, DEVICE, MODEL, compression=2, skip_share=0)
    assert plain == pytest.approx(prefill + 15 * ar)
    assert drafted == pytest.approx(prefill + 7 * (verify + draft))
    _, skipped = image_seconds(costs, DEVICE, MODEL, compression=4, skip_share=0.5)
    assert skipped == pytest.approx(prefill + 3 * (after + 2 * draft))


def test_a_recipe_is_planned_without_its_weights() -> None:
    model = recipe_model(ENGINES / "llamagen-t2i-512.toml")
    assert (model.precision, model.geometry.layers, model.ffn) == ("fp16", 36, 3584)
    lines = " ".join(plan_lines(model, data_sheet("h200"), "k10-d4-n58"))
    assert "4800 GB/s" in lines
    assert "Computed, not measured" in lines
    # 36 layers of 4 D^2 + 3 D F weights in two bytes: 1.46 GB of 1.5 GB, the head aside.
    assert 36 * model.layer_weights * 2 == pytest.approx(1.46e9, rel=0.01)


def test_a_bundle_is_measured_against_this_machine(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    assert (bundle_model(bundle).ffn, bundle_model(bundle).drafter_ffn) == (64, 64)
    _, costs, seconds = measured_floor(bundle, open_engine(bundle, options={"threads": 1}), "a red dress")
    assert set(seconds) == {cost.kind for cost in costs}
    assert all(value > 0 for value in seconds.values())
    data = floor_data(costs, Device("d", 1e9, {"fp32": 1e9}, ""), "fp32", seconds)
    assert [step["kind"] for step in data["steps"]] == [cost.kind for cost in costs]


def test_the_probe_measures_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vvs.benchmarks.devices.READ_BYTES", 1 << 20)
    monkeypatch.setattr("vvs.benchmarks.devices.MATRIX", 64)
    machine = probe("here")
    assert machine.name == "here"
    assert machine.bandwidth > 1e8
    assert machine.rate("fp32") > 1e8


@pytest.mark.parametrize("device", sorted(DATA_SHEETS))
def test_the_plan_command_shows_what_it_assumes(device: str) -> None:
    result = CliRunner().invoke(
        app, ["bench", "--plan", str(ENGINES / "llamagen-c2i-b-256.toml"), "--device", device]
    )
    assert result.exit_code == 0, result.output
    assert "NVIDIA data sheet" in result.output
    assert "(computed)" in " ".join(result.output.split())


def test_unknown_devices_are_a_sentence() -> None:
    result = CliRunner().invoke(app, ["bench", "--plan", "x", "--device", "abacus"])
    assert result.exit_code == 2
    assert "unknown device 'abacus'; there is h200, a100, l40s, rtx4090" in result.stderr
