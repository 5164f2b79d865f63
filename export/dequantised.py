"""Dequantised: int8 weights as the numbers they stand for, so that plain modules compute what the graphs do.

Eager PyTorch multiplies with these as fast as with any others; :mod:`vvs.export.int8` rounds at every call.
"""

import torch
from torch import Tensor, nn

from vvs.export.int8 import round_channels
from vvs.export.model_set import ModelSet
from vvs.export.precision import DRAFTER, Numerics


def dequantise(models: ModelSet, numerics: Numerics) -> ModelSet:
    """The models, whose products now hold what the int8 weights of a bundle stand for, if it has any.

    Args:
        models: in the precision's dtypes; they are changed, not copied.
        numerics: of the bundle.

    """
    for module, whole in ((models.target, None), (models.drafter, DRAFTER)):
        for name, product in module.named_modules():
            if isinstance(product, nn.Linear) and numerics.rounds(name, whole):
                product.weight = nn.Parameter(_stood_for(name, product.weight.detach()), requires_grad=False)
    return models


def _stood_for(name: str, weight: Tensor) -> Tensor:
    """What a weight becomes; of a drafter's ``fc`` only the feature's half is rounded."""
    if name == "fc":
        of_token, of_feature = weight.chunk(2, dim=1)
        return torch.cat([of_token, round_channels(of_feature).weight], dim=1)
    return round_channels(weight).weight
