"""Precision in PyTorch: how a bundle computes, and modules turned into that.

Kept parts compute in float32 where the rest is rounded: what flows into them is widened, and the residual
stream stays wide from the first kept layer on. Inputs, outputs and caches of the graphs keep the precision's
dtype.
"""

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from vvs.errors import ExportError
from vvs.precision import PRECISIONS, Precision

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""By the name of what is computed in."""
HEAD, DRAFTER, TEXT_ENCODER = "head", "drafter", "text-encoder"
AUTO = "auto"
KEPT_HELP = f"numbers of target layers such as 3 or 5-7, {HEAD}, {DRAFTER}, {TEXT_ENCODER} or {AUTO}"
_LAYERS = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?")
_IN_LAYER = re.compile(r"model\.layers\.(\d+)(?:\..*)?")
_IN_HEAD = re.compile(r"lm_head(?:\..*)?")

_M = TypeVar("_M", bound=nn.Module)


@dataclass(frozen=True)
class Numerics:
    """How the graphs of a bundle compute."""

    name: str = "fp32"
    """One of :data:`vvs.precision.PRECISIONS`."""
    kept: tuple[str, ...] = ()
    """Parts that compute in float32: numbers of target layers, ``head``, ``drafter``, ``text-encoder``."""
    auto: bool = False
    """Whether parts whose activations are not finite on the prompts at hand are kept too."""

    def __post_init__(self) -> None:
        if self.name not in PRECISIONS:
            raise ExportError(f"precision is {self.name!r}, but it must be one of {', '.join(PRECISIONS)}")
        for part in self.kept:
            if not can_be_kept(part):
                raise ExportError(f"{part!r} is to be kept in fp32, but what can be kept is {KEPT_HELP}")

    @classmethod
    def parse(cls, name: str, kept: Iterable[str] = ()) -> "Numerics":
        """Read the name of a precision, and entries such as ``3``, ``5-7,head`` or ``auto``.

        Raises:
            ExportError: an unknown precision or part.

        """
        entries = [entry.strip() for text in kept for entry in text.split(",")]
        parts = [part for entry in entries if entry != AUTO for part in _expanded(entry)]
        return replace(cls(name).keeping(parts), auto=AUTO in entries)

    def keeping(self, parts: Iterable[str]) -> "Numerics":
        """The same with more parts kept in float32."""
        kept = {*self.kept, *parts}
        layers = sorted((part for part in kept if part.isdecimal()), key=int)
        return replace(self, kept=(*layers, *sorted(part for part in kept if not part.isdecimal())))

    @property
    def precision(self) -> Precision:
        """What the name says."""
        return PRECISIONS[self.name]

    @property
    def dtype(self) -> torch.dtype:
        """What activations are."""
        return TORCH_DTYPES[self.precision.compute]

    def require_parts(self, layers: int, *, text_encoder: bool) -> None:
        """Raise ExportError if a part is to be kept that a model of so many target layers lacks."""
        if TEXT_ENCODER in self.kept and not text_encoder:
            raise ExportError(f"{TEXT_ENCODER} is to be kept in fp32, but this model has none")
        for part in self.kept:
            if part.isdecimal() and int(part) >= layers:
                raise ExportError(
                    f"layer {part} is to be kept in fp32, but the target's layers are 0..{layers - 1}"
                )

    def dtype_of(self, name: str, whole: str | None = None) -> torch.dtype:
        """The dtype of a weight of this name in a target, or in the part ``whole``."""
        return torch.float32 if (whole or part_of(name)) in self.kept else self.dtype

    def apply(self, module: _M, whole: str | None = None) -> _M:
        """The module with its weights in this precision's dtype, those of kept parts in float32.

        Args:
            module: a target, or all of the part ``whole``.
            whole: the part that the module is.

        """
        return with_dtypes(module, lambda name: self.dtype_of(name, whole))

    def rounds(self, name: str, whole: str | None = None) -> bool:
        """Whether the product of this name in a target, or in the part ``whole``, has int8 weights."""
        part = whole or part_of(name)
        return self.precision.int8_weights and part is not None and part not in self.kept


FP32 = Numerics()


def _expanded(entry: str) -> list[str]:
    match = _LAYERS.fullmatch(entry)
    if match is None:
        return [entry]
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ExportError(f"the layers {entry} are to be kept in fp32, but {last} comes before {first}")
    return [str(layer) for layer in range(first, last + 1)]


def can_be_kept(part: str) -> bool:
    """Whether a part is called this: by the number of a target layer, or by a name such as ``head``."""
    number = _LAYERS.fullmatch(part)
    return part in (HEAD, DRAFTER, TEXT_ENCODER) or (number is not None and number[2] is None)


def part_of(name: str) -> str | None:
    """The part of a target that a module or weight of this name belongs to, if it can be kept."""
    layer = _IN_LAYER.fullmatch(name)
    if layer:
        return layer[1]
    return HEAD if _IN_HEAD.fullmatch(name) else None


def in_precision(module: _M, dtype: torch.dtype) -> _M:
    """The module with all its weights in ``dtype``; see :func:`with_dtypes`."""
    return with_dtypes(module, lambda _: dtype)


def with_dtypes(module: _M, dtype_of: Callable[[str], torch.dtype]) -> _M:
    """The module with each weight in the dtype that its name has; rotation tables stay float32.

    Weights that have their dtype already are shared with the original, not copied.
    """
    wanted = {name: dtype_of(name) for name, _ in module.named_parameters()}
    if all(p.dtype == wanted[name] for name, p in module.named_parameters()):
        return module
    turned = {
        id(p): p
        if p.dtype == wanted[name]
        else nn.Parameter(p.detach().to(wanted[name]), requires_grad=p.requires_grad)
        for name, p in module.named_parameters()
    }
    return copy.deepcopy(module, turned)


def shallow(module: _M) -> _M:
    """A copy whose children can be replaced without touching the original; tensors are shared."""
    copied = module.__new__(type(module))
    copied.__dict__ = module.__dict__.copy()
    for store in ("_parameters", "_buffers", "_modules"):
        copied.__dict__[store] = module.__dict__[store].copy()
    return copied
