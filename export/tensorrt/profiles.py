"""Optimisation profiles: one per use of a graph, from the manifest alone; or one of given shapes.

Symbols of the shapes are those of the bundle's contract: R requests, B = g R engine rows, T target rows, A
drafter rows.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vvs.engine_record import Profile, ShapeRange, times
from vvs.errors import SettingsError
from vvs.manifest import TARGET, Manifest, TensorSpec, draft_tree_graph
from vvs.modes import MODES
from vvs.runtime.settings import resolve
from vvs.skipping import skips_in_a_row
from vvs.tree_shape import TreeShape

_SHAPES = re.compile(r"(?P<name>[^:,]+):(?P<shape>\d+(x\d+)*)")


class Range(NamedTuple):
    """Least, best and greatest value of one size."""

    min: int
    opt: int
    max: int


@dataclass(frozen=True)
class RequestRange:
    """How many requests a call may have; ``opt`` is what TensorRT tunes for."""

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.opt <= self.max:
            raise SettingsError(f"--batch is {self}, but it must satisfy 1 <= min <= opt <= max")

    def __str__(self) -> str:
        return f"{self.min}:{self.opt}:{self.max}"

    @classmethod
    def parse(cls, text: str) -> "RequestRange":
        """Read ``MAX`` or ``MIN:OPT:MAX``."""
        parts = text.split(":")
        if len(parts) not in (1, 3) or not all(part.isdecimal() for part in parts):
            raise SettingsError(f"--batch is {text!r}, but it must be MAX or MIN:OPT:MAX, such as 1:1:4")
        numbers = [int(part) for part in parts]
        return cls(*numbers) if len(numbers) == len(Range._fields) else cls(1, 1, numbers[0])


@dataclass(frozen=True)
class GivenShapes:
    """Shapes from the command line, by input name; what is left out of min or max is as in ``opt``."""

    min: Mapping[str, tuple[int, ...]]
    opt: Mapping[str, tuple[int, ...]]
    max: Mapping[str, tuple[int, ...]]

    def arguments(self) -> str:
        """The shapes as they are typed, with a space before each flag."""
        flags = (("min", self.min), ("opt", self.opt), ("max", self.max))
        return "".join(
            f" --{name}-shapes {','.join(f'{key}:{times(shape)}' for key, shape in shapes.items())}"
            for name, shapes in flags
            if shapes
        )


def parse_shapes(flag: str, text: str) -> dict[str, tuple[int, ...]]:
    """Read ``name:2x59x64,name:2x59`` as trtexec does."""
    shapes = {}
    for part in text.split(","):
        match = _SHAPES.fullmatch(part.strip())
        if match is None:
            raise SettingsError(f"--{flag} has {part!r}, but it must look like embeds:2x59x64,positions:2x59")
        shapes[match["name"]] = tuple(int(size) for size in match["shape"].split("x"))
    return shapes


def profiles_of(
    manifest: Manifest, graph: str, requests: RequestRange, given: GivenShapes | None = None
) -> tuple[Profile, ...]:
    """The profiles an engine of ``graph`` is built with; uses of the same shapes share one.

    Raises:
        SettingsError: more requests than the bundle allows, or given shapes that do not fit the graph.

    """
    if requests.max > manifest.max_requests:
        raise SettingsError(
            f"--batch goes to {requests.max}, but the bundle holds at most {manifest.max_requests} requests"
        )
    if given is not None:
        return (_given_profile(manifest, graph, given),)
    inputs = manifest.graphs[graph].inputs
    merged: dict[tuple[tuple[str, ShapeRange], ...], str] = {}
    for use, rows in _uses(manifest, graph):
        shapes = tuple((spec.name, _range(spec, requests, rows, manifest)) for spec in inputs)
        merged[shapes] = f"{merged[shapes]}+{use}" if shapes in merged else use
    return tuple(Profile(use, dict(shapes)) for shapes, use in merged.items())


def _uses(manifest: Manifest, graph: str) -> Iterator[tuple[str, Range]]:
    """Name and number of rows of every use of a graph."""
    prompt = manifest.geometry.prompt_length
    if graph == TARGET:
        yield "prefill", Range(prompt, prompt, prompt)
        yield "ar", Range(1, 1, 1)
        for name, tree in manifest.trees.items():
            yield f"verify.{name}", Range(tree.nodes, tree.nodes, tree.nodes)
            yield f"verify-after-skip.{name}", _after_skip(tree, manifest)
    elif graph.startswith(draft_tree_graph("")):
        tree = manifest.trees[graph.removeprefix(draft_tree_graph(""))]
        yield "after-prefill", Range(prompt, prompt, prompt)
        yield "after-step", Range(1, tree.longest_path, _longest_path(manifest))
    else:
        yield "whole", Range(1, 1, 1)


def _after_skip(tree: TreeShape, manifest: Manifest) -> Range:
    """Rows of a chain and a tree.

    Each skip in a row adds a path without its last node at most, of this tree or of another one; a runtime
    pads the chain to that.
    """
    skips = _skips_in_a_row(manifest)
    chain, longest_chain = skips * (tree.longest_path - 1), skips * (_longest_path(manifest) - 1)
    return Range(tree.nodes + 1, tree.nodes + chain, tree.nodes + longest_chain)


def _skips_in_a_row(manifest: Manifest) -> int:
    """Most skips in a row of any mode as the bundle recommends it, for whatever device."""
    recommending = [manifest, *map(manifest.for_device, manifest.device_defaults)]
    policies = [resolve(each, mode).skipping for each in recommending for mode in MODES]
    return max(skips_in_a_row(policy, manifest.geometry.image_tokens) for policy in policies)


def _longest_path(manifest: Manifest) -> int:
    """Nodes on the longest path of any tree: skipped steps may draft another tree than verified ones."""
    return max(tree.longest_path for tree in manifest.trees.values())


def _range(spec: TensorSpec, requests: RequestRange, rows: Range, manifest: Manifest) -> ShapeRange:
    g = manifest.geometry.guidance_rows
    shapes = []
    for R, T in zip((requests.min, requests.opt, requests.max), rows, strict=True):
        sizes = {"R": R, "B": g * R, "T": T, "A": T}
        shapes.append(tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape))
    return ShapeRange(*shapes)


def _given_profile(manifest: Manifest, graph: str, given: GivenShapes) -> Profile:
    inputs = {spec.name: spec for spec in manifest.graphs[graph].inputs}
    for name in {**given.min, **given.opt, **given.max}:
        if name not in inputs:
            raise SettingsError(
                f"shapes are given for {name!r}, but the inputs of {graph} are {', '.join(inputs)}"
            )
    shapes = {}
    for name, spec in inputs.items():
        fixed = tuple(size for size in spec.shape if isinstance(size, int))
        opt = given.opt.get(name) or (fixed if len(fixed) == len(spec.shape) else None)
        if opt is None:
            raise SettingsError(
                f"--opt-shapes lacks the input {name!r} of {graph}, whose shape is {_symbolic(spec)}"
            )
        shapes[name] = ShapeRange(given.min.get(name, opt), opt, given.max.get(name, opt))
        for shape in (shapes[name].min, opt, shapes[name].max):
            _require_fit(graph, spec, shape)
    _require_consistent(graph, inputs, shapes, manifest)
    return Profile("given", shapes)


def _require_fit(graph: str, spec: TensorSpec, shape: tuple[int, ...]) -> None:
    fits = len(shape) == len(spec.shape) and all(
        isinstance(size, str) or size == given for size, given in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        raise SettingsError(
            f"the shape {times(shape)} is given for {spec.name!r} of {graph}, but it must fit "
            f"{_symbolic(spec)}"
        )


def _require_consistent(
    graph: str, inputs: Mapping[str, TensorSpec], shapes: Mapping[str, ShapeRange], manifest: Manifest
) -> None:
    """One symbol is one number in all inputs, and B is g R."""
    g = manifest.geometry.guidance_rows
    for bound in ("min", "opt", "max"):
        known: dict[str, tuple[str, int]] = {}
        for name, spec in inputs.items():
            for symbol, size in zip(spec.shape, getattr(shapes[name], bound), strict=True):
                if not isinstance(symbol, str):
                    continue
                first, value = known.setdefault(symbol, (name, size))
                if value != size:
                    raise SettingsError(
                        f"--{bound}-shapes of {graph} give {symbol} as {value} in {first!r} "
                        f"and as {size} in {name!r}"
                    )
        if "B" in known and "R" in known and known["B"][1] != g * known["R"][1]:
            raise SettingsError(
                f"--{bound}-shapes of {graph} give B as {known['B'][1]} and R as {known['R'][1]}, "
                f"but a request has {g} engine rows"
            )


def _symbolic(spec: TensorSpec) -> str:
    return "x".join(map(str, spec.shape))
