"""The judge of generated pictures: a small convolutional network that names a garment and its colour.

It is trained on the real photographs, tinted, and never sees a generated picture. Its penultimate
features carry the Fréchet distance.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.export.training.garments import COLOUR_NAMES, GARMENT_NAMES

FEATURES = 64


class Verdict(NamedTuple):
    """What the classifier sees."""

    colours: Tensor  # [R, 12] logits
    garments: Tensor  # [R, 10] logits
    features: Tensor  # [R, 64]


class Classifier(nn.Module):
    """Pixels ``[R, 3, 32, 32]`` in [-1, 1] to a verdict."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.wide = nn.Conv2d(32, 64, 3, padding=1)
        self.deep = nn.Conv2d(64, 128, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in (32, 64, 128))
        self.features = nn.Linear(128 * 16, FEATURES)
        self.colours = nn.Linear(FEATURES, len(COLOUR_NAMES))
        self.garments = nn.Linear(FEATURES, len(GARMENT_NAMES))

    def forward(self, pixels: Tensor) -> Verdict:
        """Look at pictures."""
        x = pixels
        for conv, norm in zip((self.stem, self.wide, self.deep), self.norms, strict=True):
            x = F.max_pool2d(F.relu(norm(conv(x))), 2)
        features = F.relu(self.features(torch.flatten(F.dropout(x, 0.2, self.training), 1)))
        return Verdict(self.colours(features), self.garments(features), features)
