"""Rounding: the models of a bundle with the weights that its graphs hold."""

from dataclasses import replace

import torch

from vvs.export.int8 import with_int8_products
from vvs.export.model_set import ModelSet
from vvs.export.precision import DRAFTER, TEXT_ENCODER, Numerics, in_precision


def in_dtypes(models: ModelSet, numerics: Numerics) -> ModelSet:
    """The models in a precision's dtype, kept parts in float32; the image decoder is always float32.

    Weights that have their dtype already are shared.
    """
    encoder = models.text_encoder
    return replace(
        models,
        target=numerics.apply(models.target).eval(),
        drafter=numerics.apply(models.drafter, DRAFTER).eval(),
        vq=in_precision(models.vq, torch.float32).eval(),
        text_encoder=encoder and numerics.apply(encoder, TEXT_ENCODER).eval(),
    )


def with_rounded_products(models: ModelSet, numerics: Numerics) -> ModelSet:
    """The models with int8 weights in the products of target and drafter, if the precision says so."""
    if not numerics.precision.int8_weights:
        return models
    return replace(
        models,
        target=with_int8_products(models.target, numerics.rounds),
        drafter=with_int8_products(models.drafter, lambda name: numerics.rounds(name, DRAFTER)),
    )
