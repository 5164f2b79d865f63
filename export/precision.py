"""Precision: torch dtypes by the names that recipes and manifests use, and modules turned into another."""

import copy
from typing import TypeVar

import torch
from torch import nn

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}

_M = TypeVar("_M", bound=nn.Module)


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
