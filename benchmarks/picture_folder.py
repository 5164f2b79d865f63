"""Picture folders: image files and their captions, as they are handed in for evaluation.

A caption comes from a file of prompts (line i for the i-th picture by name), from ``metadata.jsonl``, from a
``.txt`` file beside the picture, or from the settings that ``vvs generate`` writes into its PNG files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vvs.errors import SettingsError, VvsError
from vvs.export.training.pictures import SUFFIXES, find_pictures
from vvs.export.training.prompted_files import METADATA
from vvs.runtime.images import SHEET_FILE, read_metadata
from vvs.runtime.pipeline import Pixels


@dataclass(frozen=True)
class PictureFile:
    """One image file; None: it has no caption."""

    path: Path
    caption: str | None

    def load(self) -> Pixels:
        """Read its pixels ``[H, W, 3]``.

        Raises:
            SettingsError: it cannot be read.

        """
        from PIL import Image

        try:
            with Image.open(self.path) as image:
                return np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise SettingsError(f"the picture {self.path} cannot be read: {error}") from error


def list_pictures(folder: Path, prompts: Sequence[str] | None = None) -> tuple[PictureFile, ...]:
    """Every picture of a folder, in order of their paths; contact sheets are none.

    Args:
        folder: with image files, in folders of their own or not.
        prompts: one for each picture; None looks for captions in the folder.

    Raises:
        SettingsError: there is no folder, no picture, or not as many prompts as pictures.

    """
    if not folder.is_dir():
        raise SettingsError(f"there is no folder of pictures at {folder}")
    if prompts is None and (folder / METADATA).is_file():
        return tuple(PictureFile(one.path, one.prompt) for one in find_pictures(folder))
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.name != SHEET_FILE)
    if not paths:
        raise SettingsError(f"the folder {folder} holds no pictures ({', '.join(sorted(SUFFIXES))})")
    if prompts is None:
        return tuple(PictureFile(path, _caption(path)) for path in paths)
    if len(prompts) != len(paths):
        raise SettingsError(
            f"{len(prompts)} prompts are given for the {len(paths)} pictures of {folder}, "
            "but there must be one for each, in the order of the files' names"
        )
    return tuple(PictureFile(path, prompt) for path, prompt in zip(paths, prompts, strict=True))


def captions_of(files: Sequence[PictureFile]) -> list[str]:
    """The captions of pictures.

    Raises:
        SettingsError: one has none.

    """
    for one in files:
        if not one.caption:
            raise SettingsError(
                f"the picture {one.path} has no caption: give a file of them with --prompts, or put it into "
                f"{METADATA} or into {one.path.with_suffix('.txt').name} beside it"
            )
    return [one.caption for one in files if one.caption]


def _caption(path: Path) -> str | None:
    beside = path.with_suffix(".txt")
    if beside.is_file():
        try:
            return beside.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError as error:
            raise SettingsError(f"{beside} is not UTF-8 text, but a caption must be") from error
    try:
        return read_metadata(path).prompt
    except (VvsError, OSError, SyntaxError):
        return None
