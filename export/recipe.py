"""Recipes: ``engines/*.toml``, plain data that says what a bundle is made of.

A recipe names weights, sizes and draft trees. Sizes that tensors show are taken from them and must not
contradict the recipe; with random weights (to try speed, or an export) the recipe's sizes are all there is.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from vvs.errors import CheckpointError, SettingsError
from vvs.export.checkpoint import (
    infer_drafter,
    infer_target,
    infer_vq,
    load_into,
    read_config,
    read_state,
    rename_target,
)
from vvs.export.drafter import Drafter, DrafterConfig
from vvs.export.llamagen import (
    CaptionConditioning,
    ClassConditioning,
    Conditioning,
    Target,
    TargetConfig,
    WordConditioning,
    published_ffn_width,
)
from vvs.export.model_set import DEFAULT_MAX_REQUESTS, ModelSet, unit_codebook
from vvs.export.vq import VQConfig, VQTokenizer
from vvs.geometry import Geometry
from vvs.manifest import PRECISIONS
from vvs.tree_shape import TreeShape

RANDOM = "random"
"""In place of a weights folder: random weights."""
SEED = 0

_T = TypeVar("_T")


@dataclass(frozen=True)
class WeightFiles:
    """Where weights lie: files or folders, relative to ``folder``, itself relative to the recipe."""

    folder: str = "."
    target: str = "target.safetensors"
    drafter: str = "drafter.safetensors"
    vq: str = "vq.safetensors"
    tokenizer: str = ""
    """Empty: none, prompts are not words."""


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
    """Only random weights need it."""
    default_tree: str = ""
    """Empty: the first."""
    precision: str = "fp32"
    family: str = "llamagen"
    max_requests: int = DEFAULT_MAX_REQUESTS
    defaults: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise SettingsError(
                f"{self.path}: precision is {self.precision!r}, but it must be one of {', '.join(PRECISIONS)}"
            )
        if self.family != "llamagen":
            raise SettingsError(f"{self.path}: family is {self.family!r}, but only llamagen is known")
        kinds = ("words", "class", "caption")
        if self.conditioning.kind not in kinds:
            raise SettingsError(
                f"{self.path}: conditioning.kind is {self.conditioning.kind!r}, "
                f"but it must be one of {', '.join(kinds)}"
            )
        if not self.trees:
            raise SettingsError(f"{self.path}: there are no trees, but a bundle needs at least one")
        names = [tree.name for tree in self.trees]
        if self.default_tree and self.default_tree not in names:
            raise SettingsError(
                f"{self.path}: default_tree is {self.default_tree!r}, but the trees are: {', '.join(names)}"
            )

    def models(self, weights: str | Path | None = None) -> ModelSet:
        """Build the models and load their weights.

        Args:
            weights: a folder instead of the recipe's own, or ``random``.

        Raises:
            CheckpointError: weights are missing, or do not fit the recipe.
            SettingsError: the recipe lacks a size that random weights need.

        """
        if weights == RANDOM:
            target, drafter, vq = self._random()
        else:
            target, drafter, vq = self._loaded(self.folder(weights))
        tokenizer = None
        if self.weights.tokenizer:
            # The tokenizer is data of the recipe, so random weights use the real one.
            tokenizer = _read_text(
                self.folder(None if weights == RANDOM else weights) / self.weights.tokenizer
            )
        return ModelSet(
            name=self.name,
            target=target,
            drafter=drafter,
            vq=vq,
            codebook=unit_codebook(vq),
            trees={tree.name: tree for tree in self.trees},
            default_tree=self.default_tree or self.trees[0].name,
            tokenizer=tokenizer,
            defaults=self.defaults,
            examples=self.examples,
            max_requests=self.max_requests,
            family=self.family,
        )

    def folder(self, weights: str | Path | None = None) -> Path:
        """The folder of the weights."""
        return self.path.parent / self.weights.folder if weights is None else Path(weights)

    def _loaded(self, folder: Path) -> tuple[Target, Drafter, VQTokenizer]:
        paths = {part: folder / getattr(self.weights, part) for part in ("target", "drafter", "vq")}
        vq_state = read_state(paths["vq"])
        vq = VQTokenizer(infer_vq(vq_state, f"the image tokenizer {paths['vq']}"))
        load_into(vq, vq_state, f"the image tokenizer {paths['vq']}")
        state, what = rename_target(read_state(paths["target"])), f"the target {paths['target']}"
        config = read_config(paths["target"])
        target_config = infer_target(
            state,
            what,
            grid=self.geometry.grid,
            image_size=self.geometry.grid * vq.config.downsampling,
            code_dim=vq.config.code_dim,
            guidance_rows=self.geometry.guidance_rows,
            heads=self.geometry.heads or config.get("num_attention_heads"),
        )
        self._check_sizes(target_config, what)
        target = Target(target_config)
        load_into(target, state, what)
        drafter_state, what = read_state(paths["drafter"]), f"the drafter {paths['drafter']}"
        drafter = Drafter(infer_drafter(drafter_state, target_config.geometry, what))
        load_into(drafter, drafter_state, what)
        return target.eval(), drafter.eval(), vq.eval()

    def _check_sizes(self, config: TargetConfig, what: str) -> None:
        """Raise CheckpointError if the weights contradict the recipe."""
        found = dataclasses.asdict(config.geometry) | {"ffn": config.ffn}
        for name, said in dataclasses.asdict(self.geometry).items():
            if said and said != found[name]:
                raise CheckpointError(f"{self.path} says {name} is {said}, but {what} has {found[name]}")
        kind = _kind(config.conditioning)
        if kind != self.conditioning.kind:
            raise CheckpointError(
                f"{self.path} says prompts are of kind {self.conditioning.kind}, but {what} takes {kind}"
            )

    def _random(self) -> tuple[Target, Drafter, VQTokenizer]:
        sizes = dataclasses.asdict(self.geometry)
        ffn = sizes.pop("ffn") or published_ffn_width(self.geometry.hidden)
        missing = [name for name, value in sizes.items() if not value]
        if missing or self.vq is None:
            lacking = f"geometry.{missing[0]}" if missing else "[vq]"
            raise SettingsError(f"{self.path}: random weights need {lacking}, which the recipe leaves out")
        geometry = Geometry(**sizes)
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            target = Target(TargetConfig(geometry, self._conditioning(), ffn))
            drafter = Drafter(DrafterConfig(geometry, ffn))
            vq = VQTokenizer(self.vq)
        return target.eval(), drafter.eval(), vq.eval()

    def _conditioning(self) -> Conditioning:
        said = self.conditioning
        needed = {"words": ("words", "caption_dim"), "class": ("classes",), "caption": ("caption_dim",)}
        for name in needed[said.kind]:
            if not getattr(said, name):
                raise SettingsError(
                    f"{self.path}: random weights need conditioning.{name}, which the recipe leaves out"
                )
        match said.kind:
            case "words":
                return WordConditioning(said.words, said.caption_dim)
            case "class":
                return ClassConditioning(said.classes)
            case _:
                return CaptionConditioning(said.caption_dim)


def _kind(conditioning: Conditioning) -> str:
    match conditioning:
        case WordConditioning():
            return "words"
        case ClassConditioning():
            return "class"
        case CaptionConditioning():
            return "caption"


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the tokenizer {path} cannot be read: {error}") from error


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
    tables = {Sizes: Sizes, PromptKind: PromptKind, WeightFiles: WeightFiles, VQConfig | None: VQConfig}
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
    names = {dict: "a table", list: "a list", str: "a string", int: "an integer"}
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SettingsError(f"{where} is {value!r}, but it must be {names.get(kind, kind.__name__)}")
    return value
