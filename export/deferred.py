"""Deferred weights: tensors that are computed when they are asked for, so that no second copy is ever held.

Fused and rounded weights are made from those of a model. While a graph is traced only their shapes matter,
and a placeholder of one number stands in; when the graph is written, one after another is computed, stored
and dropped. Called outside tracing, a deferred weight is computed anew each time: slow, and right.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Deferred(nn.Module):
    """A tensor of ``shape`` and ``dtype`` that ``compute`` makes."""

    def __init__(self, compute: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        stand_in = torch.zeros((), dtype=dtype).expand(shape)
        self.values = nn.Parameter(stand_in, requires_grad=False)

    def forward(self) -> Tensor:
        """The tensor; while tracing, its placeholder."""
        return self.values if torch.compiler.is_exporting() else self.compute()


class DeferredLinear(nn.Module):
    """A product without bias over a deferred weight ``[out, in]``."""

    def __init__(self, compute: Callable[[], Tensor], shape: tuple[int, int], dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = Deferred(compute, shape, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., in]`` to ``[..., out]``."""
        return F.linear(x, self.weight())


def deferred_weights(module: nn.Module) -> Mapping[str, Callable[[], Tensor]]:
    """What computes the deferred weights of a module, by the names of their placeholders."""
    return {
        f"{name}.values" if name else "values": part.compute
        for name, part in module.named_modules(remove_duplicate=False)
        if isinstance(part, Deferred)
    }
