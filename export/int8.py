"""Weight-only int8: products whose weights are int8 with one scale an output channel, symmetric.

``scale = max |w| / 127`` over a channel's weights, ``values = round(w / scale)`` in -127..127; a product
multiplies with ``values * scale``. Activations are not rounded. In graphs that is a standard
``DequantizeLinear`` in front of a ``MatMul``, without zero points, which ONNX Runtime and TensorRT both read.
Tables (embeddings), norms, the prompt encoder and the image decoder keep their precision.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.export.deferred import Deferred, DeferredLinear
from vvs.export.precision import shallow

LARGEST = 127
OPERATOR = "::DequantizeLinear"
VERSION = 20

_M = TypeVar("_M", bound=nn.Module)


class Rounded(NamedTuple):
    """A rounded weight."""

    values: Tensor  # [out, in] int8
    scales: Tensor  # [out] in the weight's dtype

    @property
    def weight(self) -> Tensor:
        """What it stands for, ``[out, in]`` in the weight's dtype."""
        return self.values.to(self.scales.dtype) * self.scales.unsqueeze(1)


def round_channels(weight: Tensor) -> Rounded:
    """Round a weight ``[out, in]`` by output channels; a channel of zeros has scale 1."""
    wide = weight.detach().float()
    scales = (wide.abs().amax(dim=1) / LARGEST).to(weight.dtype)
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    values = torch.round(wide / scales.float().unsqueeze(1)).clamp(-LARGEST, LARGEST)
    return Rounded(values.to(torch.int8), scales)


class Int8Linear(nn.Module):
    """A product without bias over int8 weights, made from one over a weight ``[out, in]``."""

    def __init__(self, weight: Callable[[], Tensor], shape: tuple[int, int], dtype: torch.dtype) -> None:
        super().__init__()
        out, inner = shape
        self.weight = weight
        self.values = Deferred(
            lambda: round_channels(weight()).values.t().contiguous(), (inner, out), torch.int8
        )
        self.scales = Deferred(lambda: round_channels(weight()).scales, (out,), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., in]`` to ``[..., out]``."""
        if not torch.compiler.is_exporting():
            return F.linear(x, round_channels(self.weight()).weight)
        values, scales = self.values(), self.scales()
        weight = torch.onnx.ops.symbolic(
            OPERATOR, (values, scales), {"axis": 1}, dtype=scales.dtype, shape=values.shape, version=VERSION
        )
        return torch.matmul(x, weight)


class Int8Fuse(nn.Module):
    """A drafter's ``fc`` over ``[embedding ; feature]``, of which the feature's half is rounded.

    The token's half is a table in the graphs (:class:`vvs.export.compact.CompactDrafter`), so it is not.
    """

    def __init__(self, fc: nn.Linear) -> None:
        super().__init__()
        of_token, of_feature = fc.weight.detach().chunk(2, dim=1)
        self.of_token = nn.Parameter(of_token, requires_grad=False)
        self.bias = fc.bias
        self.of_feature = Int8Linear(
            lambda: of_feature, (len(of_feature), of_feature.shape[1]), of_feature.dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., 2 D]`` to ``[..., D]``."""
        token, feature = x.chunk(2, dim=-1)
        out: Tensor = F.linear(token, self.of_token, self.bias) + self.of_feature(feature)
        return out


def with_int8_products(module: _M, chosen: Callable[[str], bool]) -> _M:
    """A copy of a module whose chosen products have int8 weights; tensors are shared with the original.

    Args:
        module: plain or compact, a target or a drafter.
        chosen: whether a product is rounded, by its name in the module.

    """
    done = _rounded(module, "", chosen)
    assert isinstance(done, type(module))  # noqa: S101 - for the type checker
    return done


def _rounded(module: nn.Module, name: str, chosen: Callable[[str], bool]) -> nn.Module:
    if isinstance(module, nn.Linear | DeferredLinear):
        return _int8(module, name) if chosen(name) else module
    copied = shallow(module)
    for key, child in module.named_children():
        setattr(copied, key, _rounded(child, f"{name}.{key}" if name else key, chosen))
    return copied


def _int8(linear: nn.Linear | DeferredLinear, name: str) -> nn.Module:
    if isinstance(linear, DeferredLinear):
        held = linear.weight
        out, inner = held.values.shape
        return Int8Linear(held.compute, (out, inner), held.values.dtype)
    weight = linear.weight
    if name == "fc":
        return Int8Fuse(linear)
    return Int8Linear(lambda: weight, (weight.shape[0], weight.shape[1]), weight.dtype)
