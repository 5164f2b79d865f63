"""Trains the classifier on tinted photographs, slightly shifted and with a little noise."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.export.training.classifier import Classifier
from vvs.export.training.garments import COLOUR_NAMES, Garments, tint

NOISE = 0.05
SHIFT = 2


class ClassifierStage:
    """Learns to name garments and colours; it sees every pair, so that it can judge the held-out ones."""

    name = "classifier"

    def __init__(self, classifier: Classifier, data: Garments) -> None:
        self.classifier = classifier
        self.module: nn.Module = classifier
        self._data = data

    def losses(self, batch: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Cross-entropy of both answers on one batch; ``right`` is the share with both correct."""
        picks = torch.from_numpy(rng.integers(len(self._data), size=batch))
        garments = self._data.labels[picks]
        colours = torch.from_numpy(rng.integers(len(COLOUR_NAMES), size=batch))
        pixels = tint(self._data.grey[picks], colours)
        dx, dy = (int(v) for v in rng.integers(-SHIFT, SHIFT + 1, size=2))
        pixels = torch.roll(pixels, (dy, dx), dims=(2, 3))
        pixels = pixels + NOISE * torch.randn_like(pixels)
        verdict = self.classifier(pixels)
        loss = F.cross_entropy(verdict.colours, colours) + F.cross_entropy(verdict.garments, garments)
        right = (verdict.colours.argmax(-1) == colours) & (verdict.garments.argmax(-1) == garments)
        return {"loss": loss, "right": right.float().mean()}
