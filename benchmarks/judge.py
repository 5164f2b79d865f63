"""Judge: how well pictures of the demo model show what their prompts asked for.

The tracked classifier, trained on real photographs only, names colour and garment of each picture; the
score is the share of pictures where both are as asked. Its features carry a Fréchet distance to real
test photographs. Needs torch (the ``export`` extra) and, for the distance, Fashion-MNIST.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vvs.arrays import BoolArray, Float64Array, IntArray
from vvs.export.training.classifier import Classifier
from vvs.export.training.garments import COLOUR_NAMES, GARMENT_NAMES, load_garments, tint
from vvs.export.training.weights import load_weights

CHUNK = 500


@dataclass(frozen=True, eq=False)
class Judgement:
    """What the classifier saw in M pictures."""

    colour_right: BoolArray  # [M]
    garment_right: BoolArray  # [M]
    features: Float64Array  # [M, F]

    @property
    def both_right(self) -> BoolArray:
        """Pictures that show what was asked ``[M]``."""
        return self.colour_right & self.garment_right


class Judge:
    """Names colours and garments."""

    def __init__(self, weights: Path) -> None:
        self._classifier = Classifier()
        load_weights(self._classifier, weights / "classifier.safetensors")
        self._classifier.eval()

    @torch.no_grad()
    def judge(self, pixels: NDArray[np.uint8], colours: IntArray, garments: IntArray) -> Judgement:
        """Judge pictures ``[M, 32, 32, 3]`` against what was asked for, ``[M]`` each."""
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
        verdicts = [self._classifier(chunk) for chunk in torch.split(images, CHUNK)]
        named_colours = torch.cat([v.colours.argmax(-1) for v in verdicts]).numpy()
        named_garments = torch.cat([v.garments.argmax(-1) for v in verdicts]).numpy()
        features = torch.cat([v.features for v in verdicts]).double().numpy()
        return Judgement(named_colours == colours, named_garments == garments, features)


def asked(count: int) -> tuple[list[str], IntArray, IntArray]:
    """``count`` prompts of an endless round over all colour-garment pairs, and what they ask for."""
    pairs = [(c, g) for g in range(len(GARMENT_NAMES)) for c in range(len(COLOUR_NAMES))]
    # A fixed shuffle, so that any prefix is spread over colours and garments.
    order = np.random.default_rng(7).permutation(len(pairs))
    chosen = [pairs[order[i % len(pairs)]] for i in range(count)]
    prompts = [f"{_article(COLOUR_NAMES[c])} {COLOUR_NAMES[c]} {GARMENT_NAMES[g]}" for c, g in chosen]
    return prompts, np.array([c for c, _ in chosen]), np.array([g for _, g in chosen])


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def real_pictures(colours: IntArray, garments: IntArray, seed: int = 11) -> NDArray[np.uint8]:
    """Test photographs of the garments asked for, in the colours asked for, ``[M, 32, 32, 3]``."""
    data = load_garments("test")
    rng = np.random.default_rng(seed)
    by_garment = [np.flatnonzero(data.labels.numpy() == g) for g in range(len(GARMENT_NAMES))]
    picks = torch.from_numpy(np.array([rng.choice(by_garment[g]) for g in garments]))
    pixels = tint(data.grey[picks], torch.from_numpy(colours))
    return ((pixels + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
