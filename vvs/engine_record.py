"""Engine records: what a built engine is made from, and what it promises its partners, as plain data.

A record lies beside its engine file. Its *identity* is everything that went into the build; its *contract* is
what target and drafter must agree on. This module compares them and says in words what differs; it opens no
file and knows no builder.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vvs.errors import EngineError, SettingsError
from vvs.plain_data import read_record
from vvs.tree_shape import TreeShape

RECORD_SCHEMA = 1
SHOWN_HASH = 12


@dataclass(frozen=True)
class ShapeRange:
    """Least, best and greatest shape of one input in one profile."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.min) == len(self.opt) == len(self.max):
            raise SettingsError(f"the shapes {self} differ in length, but they belong to one input")
        if not all(1 <= a <= b <= c for a, b, c in zip(self.min, self.opt, self.max, strict=True)):
            raise SettingsError(f"the shapes {self} do not satisfy 1 <= min <= opt <= max")

    def __str__(self) -> str:
        return " ".join(f"{name} {times(shape)}" for name, shape in dataclasses.asdict(self).items())

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether ``shape`` lies in the range."""
        return len(shape) == len(self.min) and all(
            a <= x <= b for a, x, b in zip(self.min, shape, self.max, strict=True)
        )


def times(shape: tuple[int, ...]) -> str:
    """A shape as trtexec writes it, such as ``2x59x64``."""
    return "x".join(map(str, shape)) or "scalar"


@dataclass(frozen=True)
class Profile:
    """One optimisation profile: what it is for, and the range of every input."""

    use: str
    """Such as ``prefill``, ``ar``, ``verify.<tree>``; uses that share a profile are joined by ``+``."""
    shapes: Mapping[str, ShapeRange]


@dataclass(frozen=True)
class EngineIdentity:
    """Everything that went into an engine."""

    graph: str
    onnx: str
    """SHA-256 over the graph file and its weights."""
    profiles: tuple[Profile, ...]
    flags: Mapping[str, Any]
    """What the builder was told, by the names of the command line."""
    builder: str
    """Import name of the package: ``tensorrt`` or ``tensorrt_rtx``."""
    version: str
    arch: str
    """Such as ``sm_89``."""

    @property
    def digest(self) -> str:
        """SHA-256 over all of it."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class EngineContract:
    """What engines that work together must agree on."""

    build: str
    """The bundle's ``source``: one export."""
    vocabulary: int
    feature_width: int
    guidance_rows: int
    kv_layout: tuple[int, ...]
    """Heads, capacity and head width of a cache ``[B, H, S, Dh]``."""
    kv_dtype: str
    trees: Mapping[str, TreeShape]
    """Of a target: the trees it can verify. Of a drafter: the one it drafts."""


@dataclass(frozen=True)
class EngineRecord:
    """What lies beside an engine file."""

    identity: EngineIdentity
    digest: str
    contract: EngineContract
    bytes: int
    sha256: str
    build_seconds: float
    """Wall time of the build, on whatever machine built it."""
    command: str
    """What builds it again."""
    schema: int = field(default=RECORD_SCHEMA)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> "EngineRecord":
        """Read plain data back, strictly.

        Raises:
            BundleError: a sentence that names the field, the schema, or a digest that does not match.

        """
        schema = data.get("schema")
        if schema != RECORD_SCHEMA:
            raise EngineError(
                f"{where} has schema version {schema!r}, but this version reads {RECORD_SCHEMA}; "
                "build the engine again with `vvs build`"
            )
        record = read_record(cls, data, where)
        if record.digest != record.identity.digest:
            raise EngineError(
                f"{where} has been changed: its digest is {record.digest[:SHOWN_HASH]}, but what it lists "
                f"makes {record.identity.digest[:SHOWN_HASH]}; build the engine again with `{record.command}`"
            )
        return record


class Difference(NamedTuple):
    """One part in which two things differ, both values as words."""

    part: str
    found: str
    wanted: str

    def __str__(self) -> str:
        return f"its {self.part} is {self.found}, but {self.wanted} is needed"


def identity_differences(found: EngineIdentity, wanted: EngineIdentity) -> Iterator[Difference]:
    """What differs, the most telling part first."""
    if found.graph != wanted.graph:
        yield Difference("graph", found.graph, wanted.graph)
    if found.arch != wanted.arch:
        yield Difference("GPU architecture", found.arch, wanted.arch)
    if (found.builder, found.version) != (wanted.builder, wanted.version):
        yield Difference(
            "builder version", f"{found.builder} {found.version}", f"{wanted.builder} {wanted.version}"
        )
    if found.onnx != wanted.onnx:
        yield Difference("ONNX hash", found.onnx[:SHOWN_HASH], wanted.onnx[:SHOWN_HASH])
    yield from _profile_differences(found.profiles, wanted.profiles)
    for name in sorted(found.flags.keys() | wanted.flags.keys()):
        a, b = found.flags.get(name), wanted.flags.get(name)
        if a != b:
            yield Difference(f"flag {name}", _word(a), _word(b))


def _profile_differences(found: tuple[Profile, ...], wanted: tuple[Profile, ...]) -> Iterator[Difference]:
    uses = [", ".join(profile.use for profile in profiles) or "empty" for profiles in (found, wanted)]
    if uses[0] != uses[1]:
        yield Difference("list of profiles", *uses)
        return
    for a, b in zip(found, wanted, strict=True):
        for name in sorted(a.shapes.keys() | b.shapes.keys()):
            ranges = a.shapes.get(name), b.shapes.get(name)
            if ranges[0] != ranges[1]:
                yield Difference(f"profile {a.use} of the input {name}", *map(_word, ranges))


def contract_differences(drafter: EngineContract, target: EngineContract) -> Iterator[Difference]:
    """What keeps a drafter from drafting for a target."""
    for part, name in (
        ("vocabulary", "vocabulary"),
        ("feature width", "feature_width"),
        ("number of guidance rows", "guidance_rows"),
        ("KV layout", "kv_layout"),
        ("KV dtype", "kv_dtype"),
    ):
        a, b = getattr(drafter, name), getattr(target, name)
        if a != b:
            yield Difference(part, _word(a), _word(b))
    for name, tree in drafter.trees.items():
        known = target.trees.get(name)
        if known != tree:
            wanted = known.name if known is not None else f"one of {', '.join(target.trees) or 'none'}"
            yield Difference(f"draft tree {name}", tree.name, wanted)
    if drafter.build != target.build:
        yield Difference("build id", drafter.build[:SHOWN_HASH], target.build[:SHOWN_HASH])


def _word(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case tuple():
            return times(value)
        case _:
            return str(value)
