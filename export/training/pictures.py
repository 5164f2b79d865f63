"""Pictures: a folder of images with their prompts, and turning them into tokens."""

from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from vvs.arrays import IntArray
from vvs.errors import SettingsError
from vvs.export.training.prompted_files import PromptedFile, find_prompted_files
from vvs.export.vq import VQTokenizer

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
ENCODED_AT_ONCE = 16


def find_pictures(folder: Path) -> list[PromptedFile]:
    """Every picture of a folder with its prompt; see :func:`find_prompted_files`."""
    return find_prompted_files(folder, SUFFIXES, "pictures")


@torch.no_grad()
def tokenise(vq: VQTokenizer, pictures: list[PromptedFile], size: int, console: Console | None) -> IntArray:
    """Tokens ``[n, M]`` of pictures, each cropped to its middle square and scaled to ``size`` pixels."""
    starts = range(0, len(pictures), ENCODED_AT_ONCE)
    shown = track(starts, "encoding pictures", console=console, disable=console is None)
    rows = []
    for start in shown:
        pixels = torch.stack([_pixels(p.path, size) for p in pictures[start : start + ENCODED_AT_ONCE]])
        rows.append(vq.encode(pixels).flatten(1).numpy())
    return np.concatenate(rows).astype(np.int64)


def _pixels(path: Path, size: int) -> Tensor:
    """One picture ``[3, size, size]`` in [-1, 1]."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            square = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.LANCZOS)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise SettingsError(f"the picture {path} cannot be read: {error}") from error
    return torch.from_numpy(np.asarray(square, np.float32)).permute(2, 0, 1) / 127.5 - 1
