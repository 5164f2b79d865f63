"""Recipes: ``engines/*.toml``, plain data that says what a bundle is made of.

A recipe names weights, sizes and draft trees. Sizes that tensors show are taken from them and must not
contradict the recipe; with random weights (to try speed, or an export) the recipe's sizes are all there is.
"""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vvs.errors import ExportError, SettingsError
from vvs.export.model_set import DEFAULT_MAX_REQUESTS, ModelSet
from vvs.export.precision import FP32, Numerics
from vvs.export.t5 import T5Config
from vvs.export.vq import VQConfig
from vvs.manifest import CONDITIONING_KINDS
from vvs.tree_shape import TreeShape

if TYPE_CHECKING:
    from vvs.export.survey import Survey

RANDOM = "random"
"""In place of a weights folder: random weights."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class WeightFiles:
    """Where weights lie: files or folders, relative to ``folder``, itself relative to the recipe.

    What does not lie there is looked for in the whole folder, and recognised by its tensors.
    """

    folder: str = "."
    target: str = "target.safetensors"
    drafter: str = "drafter.safetensors"
    """``random``: nobody has published one, so a random one stands in unless there is one in the folder."""
    vq: str = "vq.safetensors"
    text_encoder: str = "flan-t5-xl"
    """Only looked at where prompts are captions for it; its tokenizer lies beside its weights."""
    tokenizer: str = ""
    """Of models that are prompted with words; empty: none."""


@dataclass(frozen=True)
class Sizes:
    """A geometry; 0 where the weights tell."""

    grid: int
    vocabulary: int = 0
    code_dim: int = 0
    prompt_length: int = 0
    layers: int = 0
    heads: int = 0
    head_dim: int = 0
    hidden: int = 0
    guidance_rows: int = 2
    image_size: int = 0
    ffn: int = 0
    """FFN width of target and drafter; only random weights need it, and then 0 is the published width."""


@dataclass(frozen=True)
class PromptKind:
    """What prompts are; the sizes are needed for random weights only."""

    kind: str
    caption_dim: int = 0
    classes: int = 0
    words: int = 0
    class_names: str = ""
    """The names of the classes, such as ``imagenet``; empty: numbers only."""


@dataclass(frozen=True)
class Recipe:
    """One recipe, read and checked."""

    name: str
    path: Path
    geometry: Sizes
    conditioning: PromptKind
    trees: tuple[TreeShape, ...]
    weights: WeightFiles = WeightFiles()
    vq: VQConfig | None = None
    """Random weights need it; others must not contradict it."""
    text_encoder: T5Config | None = None
    """Random weights need it, where prompts are captions."""
    default_tree: str = ""
    """Empty: the first."""
    precision: str = "fp32"
    keep_fp32: tuple[str, ...] = ()
    """Parts that compute in float32 whatever the precision, as ``vvs export --keep-fp32`` takes them."""
    family: str = "llamagen"
    max_requests: int = DEFAULT_MAX_REQUESTS
    defaults: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            self.numerics()
        except ExportError as error:
            raise SettingsError(f"{self.path}: {error}") from error
        if self.family != "llamagen":
            raise SettingsError(f"{self.path}: family is {self.family!r}, but only llamagen is known")
        if self.conditioning.kind not in CONDITIONING_KINDS:
            raise SettingsError(
                f"{self.path}: conditioning.kind is {self.conditioning.kind!r}, "
                f"but it must be one of {', '.join(CONDITIONING_KINDS)}"
            )
        if not self.trees:
            raise SettingsError(f"{self.path}: there are no trees, but a bundle needs at least one")
        names = [tree.name for tree in self.trees]
        if self.default_tree and self.default_tree not in names:
            raise SettingsError(
                f"{self.path}: default_tree is {self.default_tree!r}, but the trees are: {', '.join(names)}"
            )

    def numerics(self, precision: str | None = None, kept: Sequence[str] = ()) -> Numerics:
        """How graphs compute, unless it is said otherwise.

        Raises:
            ExportError: an unknown precision or part.

        """
        return Numerics.parse(precision or self.precision, kept or self.keep_fp32)

    def models(self, weights: str | Path | None = None, numerics: Numerics = FP32) -> ModelSet:
        """Build the models and load their weights; what :meth:`survey` says, and then all of it.

        Args:
            weights: a folder instead of the recipe's own, or ``random``.
            numerics: of target, drafter and text encoder, so that they are never held in another dtype.

        Raises:
            CheckpointError: weights are missing, or do not fit the recipe.
            SettingsError: the recipe lacks a size that random weights need.

        """
        return self.survey(weights).models(numerics)

    def survey(self, weights: str | Path | None = None) -> "Survey":
        """Find the weights and check that they fit, without loading them."""
        from vvs.export.survey import look_around, make_up

        return make_up(self) if weights == RANDOM else look_around(self, self.folder(weights))

    def folder(self, weights: str | Path | None = None) -> Path:
        """The folder of the weights."""
        return self.path.parent / self.weights.folder if weights is None else Path(weights)


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe, strictly.

    Raises:
        SettingsError: the file is missing, is no TOML, or has an unknown, missing or wrong field.

    """
    file = Path(path)
    try:
        data = tomllib.loads(file.read_text())
    except FileNotFoundError as error:
        raise SettingsError(f"there is no recipe at {file}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"the recipe {file} cannot be read: {error}") from error
    if "path" in data:
        raise SettingsError(f"{file}: unknown field 'path'; a recipe lies where it lies")
    return _record(Recipe, {**data, "path": file}, str(file))


def _record(cls: type[_T], data: Mapping[str, Any], where: str) -> _T:
    """Build the frozen dataclass ``cls`` from a TOML table; unknown and missing fields are errors."""
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise SettingsError(f"{where}: unknown field {unknown[0]!r}; there is {', '.join(known)}")
    for name, known_field in known.items():
        no_default = known_field.default is known_field.default_factory is dataclasses.MISSING
        if no_default and name not in data:
            raise SettingsError(f"{where}: the field {name!r} is missing")
    return cls(**{name: _value(known[name].type, value, f"{where}: {name}") for name, value in data.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    """One field's value, checked against its annotation."""
    tables = {
        Sizes: Sizes,
        PromptKind: PromptKind,
        WeightFiles: WeightFiles,
        VQConfig | None: VQConfig,
        T5Config | None: T5Config,
    }
    if kind in tables:
        return _record(tables[kind], _typed(value, dict, where), where)
    if kind == tuple[TreeShape, ...]:
        return tuple(
            _record(TreeShape, _typed(tree, dict, f"{where}[{i}]"), f"{where}[{i}]")
            for i, tree in enumerate(_typed(value, list, where))
        )
    if kind in (tuple[str, ...], tuple[int, ...]):
        item = str if kind == tuple[str, ...] else int
        return tuple(_typed(one, item, f"{where}[{i}]") for i, one in enumerate(_typed(value, list, where)))
    if kind == Mapping[str, Any]:
        return _typed(value, dict, where)
    return _typed(value, kind, where)


def _typed(value: Any, kind: type, where: str) -> Any:
    names = {dict: "a table", list: "a list", str: "a string", int: "an integer", bool: "true or false"}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise SettingsError(f"{where} is {value!r}, but it must be {names.get(kind, kind.__name__)}")
    return value
