"""The bundle manifest: what exporter and runtime agree on, as frozen records that check themselves.

This module knows the records and how they read and write as plain data (``dict``); it opens no file.
Reading a bundle from disk and checking its hashes is ``vvs.runtime.bundle``; writing one is
``vvs.export.bundle``.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vvs.errors import BundleError, SettingsError
from vvs.geometry import Geometry
from vvs.plain_data import read_record
from vvs.precision import PRECISIONS
from vvs.tree_shape import TreeShape

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"

# Graph names. A draft tree's graph is DRAFT_TREE + "." + the tree's name.
ENCODE_PROMPT = "encode_prompt"
TARGET = "target"
DRAFT_TREE = "draft_tree"
DECODE_IMAGE = "decode_image"

# Array files (.npy, so that they can be mapped into memory).
CODEBOOK_LATENTS = "codebook_latents.npy"  # [V, C] float32
CODEBOOK_NEAREST = "codebook_nearest.npy"  # [V, K] int32, self excluded, by L2 distance
# [V, D] in the dtype of the target's embeds input
TOKEN_EMBEDDINGS = "token_embeddings.npy"  # noqa: S105 - not a password
TOKENIZER_FILE = "tokenizer.json"
WEIGHTS_FILE = "weights.bin"  # the weights of all graphs

CONDITIONING_KINDS = ("words", "t5", "class", "caption")


def draft_tree_graph(tree: str) -> str:
    """The graph that drafts the tree named ``tree``."""
    return f"{DRAFT_TREE}.{tree}"


def target_caches(layers: int) -> tuple[str, ...]:
    """The target's caches in order: inputs ``past_*``, outputs ``new_*``."""
    return tuple(f"{kind}_{layer}" for layer in range(layers) for kind in "kv")


def drafter_caches(layers: int) -> tuple[str, ...]:
    """The drafter's caches in order: ``k`` and ``v`` of its first layer, then ``k_1``, ``v_1``, ..."""
    return ("k", "v", *target_caches(layers)[2:])


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph: dtype as numpy names it (or ``bfloat16``), symbolic or fixed shape."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class ParityReport:
    """Largest errors of one output against the eager module, over the random inputs of one export."""

    output: str
    absolute: float
    relative: float
    tolerance: float


@dataclass(frozen=True)
class GraphSpec:
    """One graph: its ONNX file, its I/O, and how close it came to the eager module."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parity: tuple[ParityReport, ...] = ()


@dataclass(frozen=True)
class FileSpec:
    """Size in bytes and SHA-256 of one file of the bundle."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ConditioningSpec:
    """What a prompt is.

    ``kind``: ``words`` (one learned vector a word), ``t5`` (a caption for the text encoder that is part of
    ``encode_prompt``), both with a tokenizer in the bundle; ``class``; or ``caption`` (the states of a text
    encoder that the caller runs).
    """

    kind: str
    caption_dim: int = 0
    classes: int = 0
    class_names: str = ""
    """The names of the classes, such as ``imagenet``; empty: numbers only."""

    def __post_init__(self) -> None:
        if self.kind not in CONDITIONING_KINDS:
            raise SettingsError(
                f"conditioning.kind is {self.kind!r}, but it must be one of {', '.join(CONDITIONING_KINDS)}"
            )

    @property
    def needs_tokenizer(self) -> bool:
        """Whether prompts are text."""
        return self.kind in ("words", "t5")


@dataclass(frozen=True)
class Origin:
    """Where a bundle was exported from, for who trains a drafter for it. Paths are relative to its folder."""

    recipe: str = ""
    """The recipe; empty: none, or an older version exported the bundle."""
    weights: str = ""
    """The folder of the weights, or ``random``."""
    target: str = ""
    """SHA-256 of the tensors of the target's checkpoint; empty for random weights."""


NOWHERE = Origin()


@dataclass(frozen=True)
class Manifest:
    """Everything a loader needs to know, and check, before it opens a graph."""

    name: str
    family: str
    precision: str
    geometry: Geometry
    conditioning: ConditioningSpec
    trees: Mapping[str, TreeShape]
    default_tree: str
    max_requests: int
    """Most requests one session may hold."""
    graphs: Mapping[str, GraphSpec]
    files: Mapping[str, FileSpec]
    versions: Mapping[str, str]
    """Versions of the packages that built the bundle."""
    source: str
    """SHA-256 of everything the export depended on; the same source is not exported again."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Generation settings recommended for this model, as the command line names them."""
    device_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same for single devices by name, as ``vvs tune`` finds them; they come before ``defaults``."""
    examples: tuple[str, ...] = ()
    """Prompts worth trying."""
    random_parts: tuple[str, ...] = ()
    """Parts whose weights are random, such as ``drafter``: good for sizes and times, not for pictures."""
    kept_fp32: tuple[str, ...] = ()
    """Parts that compute in float32 whatever the precision: numbers of target layers, ``head`` ..."""
    origin: Origin = NOWHERE
    schema: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.schema != SCHEMA_VERSION:
            raise BundleError(
                f"the bundle has schema version {self.schema}, but this version reads {SCHEMA_VERSION}; "
                "export it again with `vvs export`"
            )
        if self.precision not in PRECISIONS:
            raise BundleError(
                f"the bundle's precision is {self.precision!r}, but it must be one of {', '.join(PRECISIONS)}"
            )
        required = {ENCODE_PROMPT, TARGET, DECODE_IMAGE} | {draft_tree_graph(tree) for tree in self.trees}
        missing = sorted(required - set(self.graphs))
        if missing:
            raise BundleError(f"the manifest lacks the graph {missing[0]!r}")
        if self.default_tree not in self.trees:
            known = ", ".join(self.trees) or "none"
            raise BundleError(
                f"the default tree {self.default_tree!r} is not among the bundle's trees: {known}"
            )
        for graph, spec in self.graphs.items():
            if spec.file not in self.files:
                raise BundleError(
                    f"the manifest lists no file {spec.file!r}, which the graph {graph!r} needs"
                )

    @property
    def drafter_layers(self) -> int:
        """Layers of the drafter, each with its own cache."""
        inputs = self.graphs[draft_tree_graph(self.default_tree)].inputs
        return sum(tensor.name.startswith("past_k") for tensor in inputs)

    def for_device(self, device: str) -> "Manifest":
        """Return this manifest with what is recommended for a device among its defaults."""
        own = dict(self.device_defaults.get(device, {}))
        if not own:
            return self
        modes = {name: dict(settings) for name, settings in self.defaults.get("modes", {}).items()}
        for name, settings in own.pop("modes", {}).items():
            modes[name] = modes.get(name, {}) | dict(settings)
        return dataclasses.replace(self, defaults={**self.defaults, **own, "modes": modes})

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Manifest":
        """Read plain data back, strictly: unknown or missing fields and wrong types are errors.

        Raises:
            BundleError: a sentence that names the field.

        """
        schema = data.get("schema")
        if schema != SCHEMA_VERSION:
            raise BundleError(
                f"the bundle has schema version {schema!r}, but this version reads {SCHEMA_VERSION}; "
                "export it again with `vvs export`"
            )
        return read_record(cls, data, "manifest")
