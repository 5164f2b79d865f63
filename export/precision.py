"""Precision: torch dtypes by the names that recipes and manifests use, and modules turned into another."""

import copy
from typing import TypeVar

import torch
from torch import nn

from vvs.errors import ExportError

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}

_M = TypeVar("_M", bound=nn.Module)


def require_precision(name: str) -> str:
    """The name of a precision that graphs can be written in; else an ExportError."""
    if name in TORCH_DTYPES:
        return name
    why = (
        "; ONNX Runtime cannot run bf16 on the CPU, so its graphs could not be checked"
        if name == "bf16"
        else ""
    )
    raise ExportError(f"precision is {name!r}, but it must be one of {', '.join(TORCH_DTYPES)}{why}")


def in_precision(module: _M, dtype: torch.dtype) -> _M:
    """The module with its weights in ``dtype``; rotation tables stay float32.

    Weights that are in ``dtype`` already are shared with the original, not copied.
    """
    if all(p.dtype == dtype for p in module.parameters()):
        return module
    turned = {
        id(p): p if p.dtype == dtype else nn.Parameter(p.detach().to(dtype), requires_grad=p.requires_grad)
        for p in module.parameters()
    }
    return copy.deepcopy(module, turned)
