"""ModelSet: everything one bundle is made of, as PyTorch modules and plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from vvs.errors import SettingsError
from vvs.export.drafter import Drafter
from vvs.export.llamagen import CaptionConditioning, ClassConditioning, Target, WordConditioning
from vvs.export.t5 import T5Encoder
from vvs.export.vq import VQTokenizer
from vvs.geometry import Geometry
from vvs.manifest import ConditioningSpec
from vvs.tree_shape import TreeShape

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# A request costs two KV caches of its own; sessions of more are refused by the bundle's readers.
DEFAULT_MAX_REQUESTS = 64


@dataclass(frozen=True)
class ModelSet:
    """A target, its drafter, its image decoder and what comes with them.

    The one input of the exporter and of the eager engine.
    """

    name: str
    target: Target
    drafter: Drafter
    vq: VQTokenizer
    codebook: NDArray[np.float32]
    """Codebook latents ``[V, C]`` that relaxed acceptance and skipping measure distances in."""
    trees: Mapping[str, TreeShape]
    default_tree: str
    tokenizer: str | None = None
    """Contents of ``tokenizer.json``; needed by models that take words or captions."""
    text_encoder: T5Encoder | None = None
    """Turns captions into states; without it, a text-conditional model is prompted with the states."""
    class_names: str = ""
    """The names of a class-conditional model's classes, such as ``imagenet``."""
    random_parts: tuple[str, ...] = ()
    """Parts whose weights are random."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    max_requests: int = DEFAULT_MAX_REQUESTS
    family: str = "llamagen"

    def __post_init__(self) -> None:
        geometry = self.geometry
        if self.drafter.config.geometry != geometry:
            raise SettingsError(
                f"the drafter's geometry is {self.drafter.config.geometry}, but the target's is {geometry}"
            )
        wanted = (geometry.vocabulary, geometry.code_dim)
        if self.codebook.shape != wanted or self.codebook.dtype != np.float32:
            raise SettingsError(
                f"the codebook is {self.codebook.dtype} {self.codebook.shape}, "
                f"but it must be float32 {wanted}"
            )
        if self.vq.config.codes != geometry.vocabulary:
            raise SettingsError(
                f"the image decoder has {self.vq.config.codes} codes, "
                f"but the target's vocabulary is {geometry.vocabulary}"
            )
        pixels = geometry.grid * self.vq.config.downsampling
        if pixels != geometry.image_size:
            raise SettingsError(
                f"image_size is {geometry.image_size}, but the image decoder turns "
                f"{geometry.grid} tokens a side into {pixels} pixels"
            )
        if self.default_tree not in self.trees:
            known = ", ".join(self.trees) or "none"
            raise SettingsError(f"the default tree is {self.default_tree!r}, but the trees are: {known}")
        self._check_text_encoder()
        if self.conditioning.needs_tokenizer and self.tokenizer is None:
            raise SettingsError(
                f"a model that takes {self.conditioning.kind} prompts needs a tokenizer, but none was given"
            )
        if self.max_requests < 1:
            raise SettingsError(f"max_requests is {self.max_requests}, but it must be at least 1")

    def _check_text_encoder(self) -> None:
        conditioning = self.target.config.conditioning
        if self.text_encoder is None:
            return
        if not isinstance(conditioning, CaptionConditioning):
            raise SettingsError("a text encoder was given, but the target is not prompted with captions")
        width = self.text_encoder.config.hidden
        if width != conditioning.caption_dim:
            raise SettingsError(
                f"the text encoder's states are {width} wide, "
                f"but the target is prompted with states {conditioning.caption_dim} wide"
            )

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """All modules, in a fixed order."""
        return tuple(m for m in (self.target, self.drafter, self.vq, self.text_encoder) if m is not None)

    @property
    def geometry(self) -> Geometry:
        """Sizes of the models."""
        return self.target.config.geometry

    def with_drafter(self, drafter: Drafter) -> "ModelSet":
        """The same models with another drafter."""
        return replace(self, drafter=drafter)

    def read_tokenizer(self) -> "Tokenizer":
        """The tokenizer, read. Raises SettingsError if there is none."""
        from tokenizers import Tokenizer

        if self.tokenizer is None:
            raise SettingsError(f"the model {self.name!r} has no tokenizer")
        return Tokenizer.from_str(self.tokenizer)

    @property
    def conditioning(self) -> ConditioningSpec:
        """What a prompt is, as the manifest says it."""
        match self.target.config.conditioning:
            case WordConditioning(_, caption_dim):
                return ConditioningSpec("words", caption_dim=caption_dim)
            case CaptionConditioning(caption_dim):
                kind = "caption" if self.text_encoder is None else "t5"
                return ConditioningSpec(kind, caption_dim=caption_dim)
            case ClassConditioning(classes):
                return ConditioningSpec("class", classes=classes, class_names=self.class_names)


def unit_codebook(vq: VQTokenizer) -> NDArray[np.float32]:
    """The L2-normalised codes ``[V, C]`` of an image tokenizer."""
    codes: NDArray[np.float32] = vq.quantize.unit_codes().detach().float().cpu().numpy()
    return codes
