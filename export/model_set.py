"""ModelSet: everything one bundle is made of, as PyTorch modules and plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vvs.errors import SettingsError
from vvs.export.drafter import Drafter
from vvs.export.llamagen import CaptionConditioning, ClassConditioning, Target, WordConditioning
from vvs.export.vq import VQTokenizer
from vvs.geometry import Geometry
from vvs.manifest import ConditioningSpec
from vvs.tree_shape import TreeShape

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
    """Contents of ``tokenizer.json``; needed by models that take words."""
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
        if isinstance(self.target.config.conditioning, WordConditioning) and self.tokenizer is None:
            raise SettingsError("a model that takes words needs a tokenizer, but none was given")
        if self.max_requests < 1:
            raise SettingsError(f"max_requests is {self.max_requests}, but it must be at least 1")

    @property
    def geometry(self) -> Geometry:
        """Sizes of the models."""
        return self.target.config.geometry

    @property
    def conditioning(self) -> ConditioningSpec:
        """What a prompt is, as the manifest says it."""
        match self.target.config.conditioning:
            case WordConditioning(_, caption_dim):
                return ConditioningSpec("words", caption_dim=caption_dim)
            case CaptionConditioning(caption_dim):
                return ConditioningSpec("caption", caption_dim=caption_dim)
            case ClassConditioning(classes):
                return ConditioningSpec("class", classes=classes)


def unit_codebook(vq: VQTokenizer) -> NDArray[np.float32]:
    """The L2-normalised codes ``[V, C]`` of an image tokenizer."""
    codes: NDArray[np.float32] = vq.quantize.unit_codes().detach().float().cpu().numpy()
    return codes
