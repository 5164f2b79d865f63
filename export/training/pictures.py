"""Pictures: a folder of images with their prompts, and turning them into tokens.

Prompts come from ``metadata.jsonl`` (an object a line: ``file_name``, and ``text``, ``prompt`` or ``label``),
from a ``.txt`` file beside each picture, or from the name of the folder that a picture lies in.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from vvs.arrays import IntArray
from vvs.errors import SettingsError
from vvs.export.vq import VQTokenizer

METADATA = "metadata.jsonl"
PROMPT_FIELDS = ("text", "prompt", "label")
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
ENCODED_AT_ONCE = 16


class Picture(NamedTuple):
    """An image file and the words, or the class, that ask for it."""

    path: Path
    prompt: str


def find_pictures(folder: Path) -> list[Picture]:
    """Every picture of a folder with its prompt, in order of their paths.

    Raises:
        SettingsError: there is no folder, or no picture, or one without a prompt.

    """
    if not folder.is_dir():
        raise SettingsError(f"there is no folder of pictures at {folder}")
    metadata = folder / METADATA
    pictures = list(_listed(metadata) if metadata.is_file() else _beside(folder))
    if not pictures:
        raise SettingsError(f"the folder {folder} holds no pictures ({', '.join(sorted(SUFFIXES))})")
    return pictures


def _listed(metadata: Path) -> Iterator[Picture]:
    for number, line in enumerate(_text(metadata).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            prompt = next(record[field] for field in PROMPT_FIELDS if field in record)
            yield Picture(metadata.parent / record["file_name"], str(prompt))
        except (ValueError, TypeError, KeyError, StopIteration) as error:
            raise SettingsError(
                f"line {number} of {metadata} must be an object with file_name "
                f"and one of {', '.join(PROMPT_FIELDS)}"
            ) from error


def _beside(folder: Path) -> Iterator[Picture]:
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES):
        caption = path.with_suffix(".txt")
        if caption.is_file():
            yield Picture(path, _text(caption).strip())
        elif path.parent != folder:
            yield Picture(path, path.parent.name)
        else:
            raise SettingsError(
                f"the picture {path} has no prompt: put it into {METADATA}, into {caption.name} beside it, "
                "or the picture into a folder named for its class"
            )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


@torch.no_grad()
def tokenise(vq: VQTokenizer, pictures: list[Picture], size: int, console: Console | None) -> IntArray:
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
