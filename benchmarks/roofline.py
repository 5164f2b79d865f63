"""The floor: bytes and operations of every kind of step, and the time that a device cannot go below.

A step reads every weight of its model once and the whole KV cache (the graphs mask what is not filled), and
multiplies. ``time >= max(bytes / bandwidth, operations / rate)`` (the roofline model, Williams et al. 2009).
What is small is left out: activations, norms, softmax, the image decoder.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vvs.benchmarks.devices import Device
from vvs.benchmarks.report import Rows
from vvs.geometry import Geometry
from vvs.precision import PRECISIONS, Precision
from vvs.tree_shape import TreeShape

MEBI, MILLI = 1 << 20, 1e3


@dataclass(frozen=True)
class Model:
    """Everything the floor depends on."""

    geometry: Geometry
    ffn: int
    """Of the target."""
    drafter_ffn: int
    precision: str
    trees: Mapping[str, TreeShape]
    drafter_layers: int = 1

    @property
    def numbers(self) -> Precision:
        """What the precision's name says."""
        return PRECISIONS[self.precision]

    @property
    def layer_weights(self) -> int:
        """Weights of one target layer's products."""
        D = self.geometry.hidden
        return 4 * D * D + 3 * D * self.ffn

    @property
    def head_weights(self) -> int:
        """Weights of the head, which the drafter shares."""
        return self.geometry.hidden * self.geometry.vocabulary

    @property
    def drafter_weights(self) -> int:
        """Weights of the drafter's products, its head not counted."""
        D = self.geometry.hidden
        return D * D + self.drafter_layers * (4 * D * D + 3 * D * self.drafter_ffn)


@dataclass(frozen=True)
class StepCost:
    """One kind of step of R requests."""

    kind: str
    rows: int
    """T, rows of a sequence in a target pass; drafted rows and consumed ones in a draft."""
    bytes: float
    operations: float

    def seconds(self, device: Device, precision: str) -> float:
        """The floor on a device."""
        return max(self.bytes / device.bandwidth, self.operations / device.rate(precision))

    def bound(self, device: Device, precision: str) -> str:
        """What the floor is set by."""
        by_memory = self.bytes / device.bandwidth >= self.operations / device.rate(precision)
        return "memory" if by_memory else "compute"


def step_costs(model: Model, tree: str, requests: int = 1) -> list[StepCost]:
    """Prefill, AR, verify, verify after a skip (of the longest path), and drafting, with the tree named."""
    geometry, shape = model.geometry, model.trees[tree]
    chain = shape.longest_path - 1
    return [
        _target(model, "prefill", geometry.prompt_length, requests),
        _target(model, "AR", 1, requests),
        _target(model, "verify", shape.nodes, requests),
        _target(model, "verify after a skip", chain + shape.nodes, requests),
        _draft(model, shape, requests),
    ]


def _target(model: Model, kind: str, rows: int, requests: int) -> StepCost:
    geometry = model.geometry
    B = geometry.guidance_rows * requests
    weights = geometry.layers * model.layer_weights + model.head_weights
    cache = 2 * geometry.layers * B * geometry.capacity * geometry.hidden
    products = 2 * B * rows * geometry.layers * model.layer_weights + 2 * requests * rows * model.head_weights
    attention = 4 * B * rows * (geometry.capacity + rows) * geometry.hidden * geometry.layers
    return StepCost(kind, rows, _bytes(model, weights, cache), products + attention)


def _draft(model: Model, shape: TreeShape, requests: int) -> StepCost:
    """One pass over the consumed rows (as many as a path is long), then ``depth`` passes of k rows."""
    geometry = model.geometry
    B, passes = geometry.guidance_rows * requests, 1 + shape.depth
    consumed = shape.longest_path
    rows = consumed + shape.depth * shape.k
    weights = passes * (model.drafter_weights + model.head_weights)
    # Keys and values, one number each, of every layer and place of the cache, over and over.
    wide = model.drafter_layers * geometry.hidden
    cache = passes * 2 * B * geometry.capacity * wide
    heads = 1 + shape.depth * shape.k
    products = 2 * B * rows * model.drafter_weights + 2 * requests * heads * model.head_weights
    attention = 4 * B * rows * (geometry.capacity + rows) * wide
    return StepCost("draft", rows, _bytes(model, weights, cache), products + attention)


def _bytes(model: Model, weights: int, cache: int) -> int:
    return model.numbers.product_bytes * weights + model.numbers.item_bytes * cache


def floor_rows(
    costs: list[StepCost], device: Device, precision: str, measured: Mapping[str, float] | None = None
) -> Rows:
    """The table; with ``measured`` seconds by kind, how far above the floor they are."""
    return [_row(cost, device, precision, (measured or {}).get(cost.kind)) for cost in costs]


def _row(cost: StepCost, device: Device, precision: str, measured: float | None) -> dict[str, str]:
    floor = cost.seconds(device, precision)
    row = {
        "step": cost.kind,
        "rows": str(cost.rows),
        "MiB read": f"{cost.bytes / MEBI:.1f}",
        "GFLOP": f"{cost.operations / 1e9:.2f}",
        "floor, ms": f"{MILLI * floor:.3f}",
        "bound by": cost.bound(device, precision),
    }
    if measured is not None:
        row |= {"measured, ms": f"{MILLI * measured:.3f}", "over the floor": f"{measured / floor:.1f}x"}
    return row


def image_seconds(
    costs: list[StepCost], device: Device, model: Model, compression: float, skip_share: float
) -> tuple[float, float]:
    """Floors of one whole image: plain AR, and VVS at a step compression and a share of skipped steps.

    A VVS image takes ``M / compression`` target passes, and for each verified step ``1 / (1 - skip_share)``
    drafts.
    """
    seconds = {cost.kind: cost.seconds(device, model.precision) for cost in costs}
    passes = model.geometry.image_tokens / compression
    verify = seconds["verify after a skip"] if skip_share else seconds["verify"]
    ar = seconds["prefill"] + (model.geometry.image_tokens - 1) * seconds["AR"]
    vvs = seconds["prefill"] + (passes - 1) * (verify + seconds["draft"] / (1 - skip_share))
    return ar, vvs
