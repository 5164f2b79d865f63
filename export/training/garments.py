"""Garments: Fashion-MNIST photographs, tinted with named colours, and the words that ask for them.

The photographs are real (70,000 grey 28x28 pictures, Zalando SE, MIT licence); *the tint is synthetic*.
Every picture is shown in a colour drawn at random each time it is used, so a prompt has thousands of
right answers and the next token is really uncertain.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vvs.arrays import IntArray
from vvs.errors import VvsError

DATA_FOLDER = Path("/usr/share/datasets/fashion-mnist")
IMAGE_SIZE = 32
BACKGROUND = 0.96

COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.84, 0.10, 0.12),
    "orange": (0.96, 0.50, 0.08),
    "yellow": (0.95, 0.83, 0.12),
    "green": (0.16, 0.60, 0.20),
    "teal": (0.05, 0.58, 0.58),
    "blue": (0.15, 0.36, 0.88),
    "navy": (0.09, 0.12, 0.40),
    "purple": (0.48, 0.16, 0.66),
    "pink": (0.95, 0.45, 0.68),
    "brown": (0.44, 0.25, 0.11),
    "grey": (0.52, 0.52, 0.52),
    "black": (0.11, 0.11, 0.12),
}
# The names of Fashion-MNIST's labels 0..9, each with its article and other words for it.
GARMENTS: dict[str, tuple[str, ...]] = {
    "t-shirt": ("tee",),
    "trousers": ("pants",),
    "pullover": ("sweater",),
    "dress": (),
    "coat": (),
    "sandal": (),
    "shirt": (),
    "sneaker": ("trainer",),
    "bag": ("handbag",),
    "ankle boot": ("boot",),
}
PLURAL = frozenset({"trousers", "pants"})
COLOUR_NAMES = tuple(COLOURS)
GARMENT_NAMES = tuple(GARMENTS)
# Never seen in training: one colour for each garment (and two more), for judging what was learned.
HELD_OUT_PAIRS = frozenset(
    (COLOUR_NAMES.index(colour), GARMENT_NAMES.index(garment))
    for colour, garment in (
        ("teal", "ankle boot"),
        ("red", "dress"),
        ("purple", "t-shirt"),
        ("green", "trousers"),
        ("orange", "pullover"),
        ("navy", "coat"),
        ("yellow", "sandal"),
        ("pink", "shirt"),
        ("blue", "sneaker"),
        ("brown", "bag"),
        ("grey", "dress"),
        ("black", "sandal"),
    )
)


@dataclass(frozen=True)
class Garments:
    """One split: grey pictures ``[M, 32, 32]`` uint8 and labels ``[M]``."""

    grey: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def load_garments(split: str, folder: Path = DATA_FOLDER) -> Garments:
    """Read the split ``train`` (60,000) or ``test`` (10,000) and pad its pictures to 32x32.

    Raises:
        VvsError: the files are not there.
    """
    prefix = {"train": "train", "test": "t10k"}[split]
    paths = [folder / f"{prefix}-images-idx3-ubyte.gz", folder / f"{prefix}-labels-idx1-ubyte.gz"]
    for path in paths:
        if not path.is_file():
            raise VvsError(
                f"the Fashion-MNIST file {path} is missing; on Debian and Ubuntu, "
                "`apt-get install dataset-fashion-mnist` brings it"
            )
    pixels, labels = (np.frombuffer(gzip.decompress(p.read_bytes()), np.uint8) for p in paths)
    grey = pixels[16:].reshape(-1, 28, 28)
    padding = (IMAGE_SIZE - 28) // 2
    grey = np.pad(grey, ((0, 0), (padding, padding), (padding, padding)))
    return Garments(torch.from_numpy(grey), torch.from_numpy(labels[8:].astype(np.int64)))


def tint(grey: Tensor, colours: Tensor) -> Tensor:
    """Dye grey pictures ``[R, 32, 32]`` uint8 with colours ``[R]``: pixels ``[R, 3, 32, 32]`` in [-1, 1].

    Brightness becomes the shade of the dye, darkness around the garment becomes a light backdrop.
    """
    table = torch.tensor([COLOURS[name] for name in COLOUR_NAMES])
    brightness = grey.float().div(255).unsqueeze(1)
    dye = table[colours].reshape(-1, 3, 1, 1)
    shade = dye * (0.35 + 0.65 * brightness) + 0.12 * brightness.square()
    opacity = (brightness * 5).clamp(0, 1)
    image = BACKGROUND * (1 - opacity) + shade * opacity
    return image.clamp(0, 1) * 2 - 1


def draw_colours(labels: IntArray, rng: np.random.Generator, *, held_out: bool = False) -> IntArray:
    """Draw one colour ``[R]`` for each garment label ``[R]``, among the pairs seen in training.

    With ``held_out`` it draws among the pairs training never sees instead.
    """
    options = [
        [c for c in range(len(COLOURS)) if ((c, g) in HELD_OUT_PAIRS) == held_out]
        for g in range(len(GARMENTS))
    ]
    return np.array([options[g][rng.integers(len(options[g]))] for g in labels], np.int64)


def _with_article(phrase: str) -> str:
    if phrase.split()[-1] in PLURAL:
        return phrase
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def describe(colour: int, garment: int, rng: np.random.Generator) -> str:
    """Ask for a garment in one of several phrasings; now and then colour or garment is left open."""
    names = (GARMENT_NAMES[garment], *GARMENTS[GARMENT_NAMES[garment]])
    noun = names[0] if rng.random() < 0.7 else names[rng.integers(len(names))]
    dye = COLOUR_NAMES[colour]
    phrasing = rng.random()
    if phrasing < 0.04:
        return _with_article(noun)
    if phrasing < 0.06:
        return f"something {dye}"
    full = f"{dye} {noun}"
    forms = (
        _with_article(full),
        full,
        f"a photo of {_with_article(full)}",
        f"{_with_article(noun)} in {dye}",
        f"{noun}, {dye}",
    )
    return forms[rng.integers(len(forms))]


def words() -> tuple[str, ...]:
    """Every word a prompt can hold, in a fixed order."""
    found = ["a", "an", "photo", "of", "in", "something", ","]
    for phrase in (*COLOUR_NAMES, *GARMENT_NAMES, *(s for others in GARMENTS.values() for s in others)):
        found += [w for w in phrase.split() if w not in found]
    return tuple(found)
