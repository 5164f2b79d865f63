"""The floor of a recipe on a device that need not be there, and of a bundle on this machine."""

from pathlib import Path
from typing import Any

from vvs.benchmarks.devices import Device
from vvs.benchmarks.roofline import Model, StepCost, image_seconds, step_costs
from vvs.benchmarks.step_times import step_times
from vvs.engine import Engine
from vvs.errors import BundleError, SettingsError
from vvs.manifest import TARGET, draft_tree_graph
from vvs.runtime.bundle import Bundle
from vvs.runtime.prompts import encode

PAPER_COMPRESSION, PAPER_SKIPS = 2.86, 0.5
"""Of VVS at interval 2 on LlamaGen-XL, stage II (arXiv 2511.13587): what a plan assumes for a whole image."""


def recipe_model(recipe: Path, precision: str | None = None) -> Model:
    """The sizes of a recipe, from the sizes it states; no weights are read.

    Raises:
        SettingsError: PyTorch is missing, or the recipe leaves a size to the weights.

    """
    try:
        from vvs.export.recipe import RANDOM, load_recipe
    except ImportError as error:
        raise SettingsError(
            "reading a recipe needs torch, which this Python does not have; "
            "install it with `pip install 'vvs-toolkit[export]'`"
        ) from error
    read = load_recipe(recipe)
    survey = read.survey(RANDOM)
    trees = {tree.name: tree for tree in read.trees}
    target, drafter = survey.target, survey.drafter
    numbers = precision or read.precision
    return Model(target.geometry, target.ffn, drafter.ffn, numbers, trees, drafter.layers)


def bundle_model(bundle: Bundle) -> Model:
    """The sizes of a bundle; FFN widths are read off its graphs.

    Raises:
        SettingsError: the package onnx is missing.
        BundleError: a graph is none of a LlamaGen.

    """
    manifest, tree = bundle.manifest, bundle.manifest.default_tree
    ffn, drafter_ffn = (_ffn(bundle, graph) for graph in (TARGET, draft_tree_graph(tree)))
    return Model(
        manifest.geometry, ffn, drafter_ffn, manifest.precision, manifest.trees, manifest.drafter_layers
    )


def _ffn(bundle: Bundle, graph: str) -> int:
    try:
        import onnx
    except ImportError as error:
        raise SettingsError(
            "reading a graph's sizes needs onnx, which this Python does not have; "
            "install it with `pip install 'vvs-toolkit[export]'`"
        ) from error
    file = bundle.file(bundle.manifest.graphs[graph].file)
    model = onnx.load(str(file), load_external_data=False)
    hidden = bundle.manifest.geometry.hidden
    weights = {w.name: tuple(w.dims) for w in model.graph.initializer if len(w.dims) == 2}
    # A weight that is int8 in the file goes through a DequantizeLinear.
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in weights:
            weights[node.output[0]] = weights[node.input[0]]
    used = [weights[name] for node in model.graph.node if node.op_type == "MatMul" for name in node.input[1:2]
            if name in weights]  # fmt: skip
    # Products that end in the hidden width start from it, or, the FFN's second one, from the FFN width.
    widths = {rows for rows, columns in used if columns == hidden}
    if not widths:
        raise BundleError(
            f"the graph {graph!r} has no product of width {hidden}, so it is none of a LlamaGen"
        )
    return max(widths - {hidden}, default=hidden)


def plan_lines(model: Model, device: Device, tree: str) -> list[str]:
    """What a plan says besides its table: the figures it assumes, and the floor of a whole image."""
    costs = step_costs(model, tree)
    ar, vvs = image_seconds(costs, device, model, PAPER_COMPRESSION, PAPER_SKIPS)
    rates = ", ".join(f"{rate / 1e12:.1f} TFLOP/s {name}" for name, rate in device.rates.items())
    return [
        f"{device.name}: {device.bandwidth / 1e9:.0f} GB/s, {rates} ({device.source}).",
        f"Floor of an image: AR {ar:.3f} s; VVS {vvs:.3f} s ({ar / vvs:.2f}x), at a step compression of "
        f"{PAPER_COMPRESSION} with every second step skipped, as the paper reports for LlamaGen-XL stage II.",
        "Computed, not measured: real steps take longer than the floor.",
    ]


def measured_floor(
    bundle: Bundle, engine: Engine, prompt: str
) -> tuple[Model, list[StepCost], dict[str, float]]:
    """Sizes, costs and measured seconds of a bundle's steps on this machine, with its default tree."""
    tree = bundle.manifest.default_tree
    model = bundle_model(bundle)
    return model, step_costs(model, tree), step_times(engine, encode(bundle, [prompt]), tree)


def floor_data(
    costs: list[StepCost], device: Device, precision: str, measured: dict[str, float]
) -> dict[str, Any]:
    """As plain data."""
    return {
        "device": {"name": device.name, "bandwidth": device.bandwidth, "rates": dict(device.rates)},
        "steps": [
            {
                **vars(cost),
                "floor_seconds": cost.seconds(device, precision),
                "bound": cost.bound(device, precision),
                "seconds": measured.get(cost.kind),
            }
            for cost in costs
        ],
    }
