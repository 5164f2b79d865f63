"""Survey: which weights a recipe finds, what they say about the models, and whether they fit together.

Surveying opens checkpoints but loads none of them (their tensors stay mapped), so it is cheap at any size:
``vvs export --dry-run`` stops after it. Loading takes one part after another, straight into its precision.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from vvs.errors import CheckpointError, SettingsError
from vvs.export.checkpoint import load_into
from vvs.export.drafter import Drafter, DrafterConfig
from vvs.export.layouts import Checkpoint, Kind, check_kind, open_checkpoint, search
from vvs.export.llamagen import (
    CaptionConditioning,
    ClassConditioning,
    Conditioning,
    Target,
    TargetConfig,
    WordConditioning,
    published_ffn_width,
)
from vvs.export.model_set import ModelSet, unit_codebook
from vvs.export.precision import DRAFTER, FP32, TEXT_ENCODER, Numerics
from vvs.export.recipe import RANDOM, Recipe
from vvs.export.sizes import infer_drafter, infer_target, infer_text_encoder, infer_vq
from vvs.export.t5 import T5Config, T5Encoder
from vvs.export.text_tokenizer import read_tokenizer, stand_in_tokenizer
from vvs.export.vq import VQConfig, VQTokenizer
from vvs.geometry import Geometry
from vvs.manifest import TOKENIZER_FILE

SEED = 0

_Config = TargetConfig | DrafterConfig | VQConfig | T5Config
_M = TypeVar("_M", bound=nn.Module)


@dataclass(frozen=True)
class Survey:
    """Models that can be built: their sizes, and where their weights come from."""

    recipe: Recipe
    target: TargetConfig
    drafter: DrafterConfig
    vq: VQConfig
    text_encoder: T5Config | None
    tokenizer: str | None
    """Contents of ``tokenizer.json``."""
    checkpoints: Mapping[Kind, Checkpoint]
    """Parts that are not here have random weights."""
    made_up_tokenizer: bool = False

    @property
    def configs(self) -> Mapping[Kind, _Config]:
        """The settings of every part."""
        configs: dict[Kind, _Config] = {
            Kind.TARGET: self.target,
            Kind.DRAFTER: self.drafter,
            Kind.VQ: self.vq,
        }
        return configs if self.text_encoder is None else configs | {Kind.TEXT_ENCODER: self.text_encoder}

    @property
    def random_parts(self) -> tuple[str, ...]:
        """Parts whose weights are random, as sentences name them."""
        parts = [kind.value for kind in self.configs if kind not in self.checkpoints]
        return (*parts, "tokenizer") if self.made_up_tokenizer else tuple(parts)

    def models(self, numerics: Numerics = FP32) -> ModelSet:
        """Build the models in the dtypes that a bundle computes in; the image tokenizer is always float32.

        Raises:
            ExportError: a part is to be kept in float32 that these models lack.

        """
        self.require_parts(numerics)
        recipe = self.recipe
        vq = self._part(Kind.VQ, VQTokenizer, self.vq, lambda _: torch.float32)
        encoder = None
        if self.text_encoder is not None:
            encoder = self._part(
                Kind.TEXT_ENCODER, T5Encoder, self.text_encoder, lambda _: numerics.dtype_of("", TEXT_ENCODER)
            )
        return ModelSet(
            name=recipe.name,
            target=self._part(Kind.TARGET, Target, self.target, numerics.dtype_of),
            drafter=self._part(Kind.DRAFTER, Drafter, self.drafter, lambda _: numerics.dtype_of("", DRAFTER)),
            vq=vq,
            codebook=unit_codebook(vq),
            trees={tree.name: tree for tree in recipe.trees},
            default_tree=recipe.default_tree or recipe.trees[0].name,
            tokenizer=self.tokenizer,
            text_encoder=encoder,
            class_names=recipe.conditioning.class_names,
            random_parts=self.random_parts,
            defaults=recipe.defaults,
            examples=recipe.examples,
            max_requests=recipe.max_requests,
            family=recipe.family,
        )

    def require_parts(self, numerics: Numerics) -> None:
        """Raise ExportError if a part is to be kept in float32 that these models lack."""
        numerics.require_parts(self.target.geometry.layers, text_encoder=self.text_encoder is not None)

    def _part(self, kind: Kind, module: type[_M], config: Any, dtype: Callable[[str], torch.dtype]) -> _M:
        built = without_memory(module, config)
        checkpoint = self.checkpoints.get(kind)
        if checkpoint is None:
            rng = torch.Generator().manual_seed(SEED + list(Kind).index(kind))
            randomise(
                built, dtype, rng, config.random_scale if isinstance(config, T5Config) else lambda _: 1.0
            )
        else:
            load_into(built, checkpoint.state, checkpoint.what, dtype)
        return built.eval()


def without_memory(module: type[_M], config: Any) -> _M:
    """A module whose weights have shapes but no memory; its tables are real."""
    with torch.device("meta"):
        return module(config)


def randomise(
    module: nn.Module,
    dtype: Callable[[str], torch.dtype],
    rng: torch.Generator,
    scale: Callable[[str], float] = lambda name: 1.0,
) -> None:
    """Give a module without memory random weights that keep activations near one.

    Args:
        module: what gets them.
        dtype: of a weight, by its name.
        rng: where they come from.
        scale: factor of a weight, by its name, where activations near one are too large.

    """
    state = {}
    for name, wanted in module.state_dict().items():
        tensor = torch.empty(wanted.shape, dtype=dtype(name))
        if tensor.ndim > 1:
            deviation = math.prod(tensor.shape[1:]) ** -0.5 * scale(name)
            tensor.normal_(0, deviation, generator=rng)
        else:
            tensor.fill_(float(name.endswith("weight")))
        state[name] = tensor
    module.load_state_dict(state, assign=True)


def look_around(recipe: Recipe, folder: Path) -> Survey:
    """Survey the weights in ``folder``.

    Raises:
        CheckpointError: a part is missing or unreadable, or parts contradict the recipe or each other.

    """
    return fit_together(recipe, folder, _find(recipe, folder))


def fit_together(recipe: Recipe, folder: Path, found: Mapping[Kind, Checkpoint]) -> Survey:
    """Survey checkpoints; the image tokenizer may be absent where the recipe has its sizes, and the drafter.

    Raises:
        CheckpointError: a part contradicts the recipe or another part.
        SettingsError: the recipe lacks the sizes of the image tokenizer.

    """
    target_file = found[Kind.TARGET]
    vq, vq_what = _vq(recipe, found.get(Kind.VQ))
    target = infer_target(
        target_file.state,
        target_file.what,
        grid=recipe.geometry.grid,
        image_size=recipe.geometry.grid * vq.downsampling,
        code_dim=vq.code_dim,
        guidance_rows=recipe.geometry.guidance_rows,
        heads=recipe.geometry.heads or None,
        config=target_file.config,
    )
    _check_target(recipe, target, target_file.what)
    if vq.codes != target.geometry.vocabulary:
        raise CheckpointError(
            f"{vq_what} has {vq.codes} codes (quantize.embedding.weight), "
            f"but {target_file.what} knows {target.geometry.vocabulary} tokens (model.embed_tokens.weight)"
        )
    drafter_file = found.get(Kind.DRAFTER)
    drafter = (
        DrafterConfig(target.geometry, target.ffn)
        if drafter_file is None
        else infer_drafter(drafter_file.state, target.geometry, drafter_file.what, drafter_file.config)
    )
    encoder_file = found.get(Kind.TEXT_ENCODER)
    encoder = None
    if encoder_file is not None:
        encoder = infer_text_encoder(encoder_file.state, encoder_file.what, encoder_file.config)
        _check_text_encoder(encoder, encoder_file.what, target, target_file.what)
    return Survey(recipe, target, drafter, vq, encoder, _tokenizer(recipe, folder, encoder_file), found)


def _find(recipe: Recipe, folder: Path) -> dict[Kind, Checkpoint]:
    """The checkpoints a recipe needs: at the place it names, or else anywhere in the folder."""
    names = {
        Kind.TARGET: recipe.weights.target,
        Kind.DRAFTER: recipe.weights.drafter,
        Kind.VQ: recipe.weights.vq,
    }
    if recipe.conditioning.kind == "t5":
        names[Kind.TEXT_ENCODER] = recipe.weights.text_encoder
    found: dict[Kind, Checkpoint] = {}
    for kind, name in names.items():
        if name != RANDOM and (folder / name).exists():
            found[kind] = open_checkpoint(folder / name)
            check_kind(found[kind], kind)
    missing = {kind: name for kind, name in names.items() if kind not in found}
    if missing:
        found |= search(folder, missing, taken=[one.path for one in found.values()])
    return found


def _vq(recipe: Recipe, file: Checkpoint | None) -> tuple[VQConfig, str]:
    """The image tokenizer's settings, and what to call it."""
    if file is not None:
        vq = infer_vq(file.state, file.what)
        _check_vq(recipe, vq, file.what)
        return vq, file.what
    if recipe.vq is None:
        raise SettingsError(f"{recipe.path}: random weights need [vq], which the recipe leaves out")
    return recipe.vq, f"the image tokenizer of {recipe.path}"


def _tokenizer(recipe: Recipe, folder: Path, encoder: Checkpoint | None) -> str | None:
    """Contents of the tokenizer: beside the text encoder, or where the recipe says."""
    if encoder is not None:
        place = encoder.path if encoder.path.is_dir() else encoder.path.parent
        named = folder / recipe.weights.tokenizer if recipe.weights.tokenizer else place / TOKENIZER_FILE
        return read_tokenizer(named, most_ids=encoder.state["shared.weight"].shape[0])
    return read_tokenizer(folder / recipe.weights.tokenizer) if recipe.weights.tokenizer else None


def _check_target(recipe: Recipe, config: TargetConfig, what: str) -> None:
    """Raise CheckpointError if the weights contradict the recipe."""
    found = dataclasses.asdict(config.geometry) | {"ffn": config.ffn}
    for name, said in dataclasses.asdict(recipe.geometry).items():
        if said and said != found[name]:
            raise CheckpointError(f"{recipe.path} says {name} is {said}, but {what} has {found[name]}")
    kind = prompt_kind(config.conditioning)
    # A text encoder turns captions into the states that the target takes.
    said_kind = "caption" if recipe.conditioning.kind == "t5" else recipe.conditioning.kind
    if kind != said_kind:
        raise CheckpointError(
            f"{recipe.path} says prompts are of kind {recipe.conditioning.kind}, but {what} takes {kind}"
        )


def _check_vq(recipe: Recipe, config: VQConfig, what: str) -> None:
    if recipe.vq is None:
        return
    found = dataclasses.asdict(config)
    for name, said in dataclasses.asdict(recipe.vq).items():
        if said != found[name]:
            raise CheckpointError(f"{recipe.path} says vq.{name} is {said}, but {what} has {found[name]}")


def _check_text_encoder(config: T5Config, what: str, target: TargetConfig, target_what: str) -> None:
    assert isinstance(target.conditioning, CaptionConditioning)  # noqa: S101 - checked with the target
    wanted = target.conditioning.caption_dim
    if config.hidden != wanted:
        raise CheckpointError(
            f"{what} has states {config.hidden} wide (shared.weight), but {target_what} "
            f"is prompted with states {wanted} wide (model.cls_embedding.uncond_embedding)"
        )


def prompt_kind(conditioning: Conditioning) -> str:
    """What prompts are, as recipes call it, where no text encoder turns captions into states."""
    match conditioning:
        case WordConditioning():
            return "words"
        case ClassConditioning():
            return "class"
        case CaptionConditioning():
            return "caption"


def make_up(recipe: Recipe) -> Survey:
    """Survey random weights: the recipe's own sizes.

    Raises:
        SettingsError: the recipe lacks a size.

    """
    sizes = dataclasses.asdict(recipe.geometry)
    ffn = sizes.pop("ffn") or published_ffn_width(recipe.geometry.hidden)
    missing = [f"geometry.{name}" for name, value in sizes.items() if not value]
    missing += [] if recipe.vq else ["[vq]"]
    needs_encoder = recipe.conditioning.kind == "t5"
    missing += ["[text_encoder]"] if needs_encoder and recipe.text_encoder is None else []
    missing += [f"conditioning.{name}" for name in _needed(recipe) if not getattr(recipe.conditioning, name)]
    if missing or recipe.vq is None:
        raise SettingsError(f"{recipe.path}: random weights need {missing[0]}, which the recipe leaves out")
    geometry = Geometry(**sizes)
    target = TargetConfig(geometry, _conditioning(recipe), ffn)
    drafter = DrafterConfig(geometry, ffn)
    encoder = recipe.text_encoder if needs_encoder else None
    if encoder is not None:
        return Survey(
            recipe, target, drafter, recipe.vq, encoder, stand_in_tokenizer(), {}, made_up_tokenizer=True
        )
    # A tokenizer of words is data of the recipe, so random weights use the real one.
    return Survey(recipe, target, drafter, recipe.vq, None, _tokenizer(recipe, recipe.folder(), None), {})


def _needed(recipe: Recipe) -> tuple[str, ...]:
    kinds = {"words": ("words", "caption_dim"), "class": ("classes",)}
    return kinds.get(recipe.conditioning.kind, ("caption_dim",))


def _conditioning(recipe: Recipe) -> Conditioning:
    said = recipe.conditioning
    match said.kind:
        case "words":
            return WordConditioning(said.words, said.caption_dim)
        case "class":
            return ClassConditioning(said.classes)
        case _:
            return CaptionConditioning(said.caption_dim)
