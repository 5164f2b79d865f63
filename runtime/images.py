"""Images: PNG files that carry their settings, and contact sheets.

A file appears under its name only when it is complete.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vvs import __version__
from vvs.errors import SettingsError, VvsError
from vvs.manifest import Manifest
from vvs.runtime.pipeline import GeneratedImage, Pixels
from vvs.runtime.prompts import Prompt, label
from vvs.runtime.whole_file import whole_file

if TYPE_CHECKING:
    from PIL import Image

PREFIX = "vvs:"
"""Of the text chunks' keys."""

SHEET_FILE = "contact-sheet.png"
"""Of a folder of pictures; it is not one of them."""

# Contact sheets, in pixels.
CELL = 192
MARGIN = 8
LABEL = 18
LABEL_COLUMN = 220
BACKGROUND = (250, 250, 250)
INK = (30, 30, 30)
CHARACTER_WIDTH = 6
"""Of Pillow's default font, about; longer labels are cut."""


@dataclass(frozen=True)
class PngMetadata:
    """What a generated PNG says about itself: all that is needed to generate it again."""

    prompt: str
    seed: int
    mode: str
    config: Mapping[str, Any]
    """Every setting, as :meth:`vvs.config.GenerationConfig.describe` writes it."""
    bundle: str
    source: str
    """The bundle's source hash."""
    version: str = __version__


def metadata_of(image: GeneratedImage, mode: str, manifest: Manifest) -> PngMetadata:
    """Describe a generated image."""
    return PngMetadata(
        prompt=label(image.prompt),
        seed=image.seed,
        mode=mode,
        config=image.config.describe(),
        bundle=manifest.name,
        source=manifest.source,
    )


def save_png(path: Path, pixels: Pixels, metadata: PngMetadata | None = None) -> None:
    """Write a PNG whole or not at all."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    for key, value in vars(metadata).items() if metadata else ():
        info.add_itxt(PREFIX + key, json.dumps(value))
    with whole_file(path) as temporary:
        Image.fromarray(pixels).save(temporary, format="PNG", pnginfo=info)


def read_metadata(path: Path) -> PngMetadata:
    """Read what :func:`save_png` wrote; raises VvsError if the file is no PNG of ours."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            image.load()
            text = dict(getattr(image, "text", {}))
        values = {key.removeprefix(PREFIX): json.loads(text[key]) for key in text if key.startswith(PREFIX)}
        return PngMetadata(**values)
    except (UnidentifiedImageError, TypeError, ValueError) as error:
        raise VvsError(f"{path} is not a PNG that vvs has written, or its settings are damaged") from error


def file_name(index: int, prompt: Prompt, mode: str, seed: int) -> str:
    """Name the PNG of a generated image: number, words, mode and seed."""
    words = re.sub(r"[^a-z0-9]+", "-", label(prompt).lower()).strip("-")[:60].strip("-")
    return f"{index:04d}-{words or 'image'}-{mode}-seed{seed}.png"


def contact_sheet(
    images: Sequence[Sequence[Pixels | None]], rows: Sequence[str], columns: Sequence[str]
) -> "Image.Image":
    """Lay images out in a grid with labels; small ones are enlarged so that their pixels can be seen.

    Args:
        images: ``[rows][columns]``; None leaves a gap.
        rows: labels of the rows, such as prompts.
        columns: labels of the columns, such as modes.

    """
    from PIL import Image, ImageDraw

    if len(images) != len(rows) or any(len(row) != len(columns) for row in images) or not columns:
        raise SettingsError(
            f"a contact sheet of {len(rows)} row labels and {len(columns)} column labels needs that many "
            "rows and columns of images"
        )
    size = (
        LABEL_COLUMN + len(columns) * (CELL + MARGIN) + MARGIN,
        LABEL + len(rows) * (CELL + MARGIN) + 2 * MARGIN,
    )
    sheet = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for column, text in enumerate(columns):
        draw.text((_left(column), MARGIN), _cut(text, CELL), INK)
    for row, (text, cells) in enumerate(zip(rows, images, strict=True)):
        top = LABEL + MARGIN + row * (CELL + MARGIN)
        draw.multiline_text((MARGIN, top), _wrap(text, LABEL_COLUMN - 2 * MARGIN), INK)
        for column, pixels in enumerate(cells):
            if pixels is not None:
                sheet.paste(_enlarged(pixels), (_left(column), top))
    return sheet


def save_sheet(path: Path, sheet: "Image.Image") -> None:
    """Write a contact sheet whole or not at all."""
    save_png(path, np.asarray(sheet))


def _left(column: int) -> int:
    return LABEL_COLUMN + column * (CELL + MARGIN)


def _enlarged(pixels: Pixels) -> "Image.Image":
    """Fit into a cell: whole multiples by nearest neighbour, anything else by Lanczos."""
    from PIL import Image

    image = Image.fromarray(pixels)
    height, width = pixels.shape[:2]
    scale = CELL / max(height, width)
    how = Image.Resampling.NEAREST if scale >= 1 and scale.is_integer() else Image.Resampling.LANCZOS
    return image.resize((max(1, round(width * scale)), max(1, round(height * scale))), how)


def _cut(text: str, width: int) -> str:
    most = width // CHARACTER_WIDTH
    return text if len(text) <= most else text[: most - 3] + "..."


def _wrap(text: str, width: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width // CHARACTER_WIDTH, max_lines=10, placeholder=" ..."))
