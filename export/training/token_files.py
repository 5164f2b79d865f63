"""Token files: ``.npy`` arrays of image tokens, as tokenizers' own scripts keep them, with their prompts."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import IntArray
from vvs.errors import SettingsError
from vvs.export.training.prompted_files import PromptedFile, with_caption

SUFFIX = ".npy"


class PromptedTokens(NamedTuple):
    """Image tokens ``[n, M]``, and n prompts."""

    tokens: IntArray
    prompts: list[str]


def captioned_token_file(path: Path) -> PromptedFile:
    """One file of tokens with the prompts beside it.

    Raises:
        SettingsError: there are none.

    """
    found = with_caption(path)
    if found is None:
        raise SettingsError(
            f"the token file {path} has no prompts: put them into {path.stem}.txt beside it, a line for each"
        )
    return found


def read_token_files(files: Iterable[PromptedFile], grid: int) -> PromptedTokens:
    """Read tokens and prompts of files of one or more pictures each.

    Args:
        files: arrays of integers whose last axis is M = grid * grid, or whose last two are the grid. The
            prompt of a file of several pictures has a line for each, or is one for all.
        grid: tokens along one side of a picture.

    Raises:
        SettingsError: a file cannot be read, has another shape or dtype, or another number of prompts.

    """
    rows: list[IntArray] = []
    prompts: list[str] = []
    for path, prompt in files:
        tokens = _rows(path, _read(path), grid)
        rows.append(tokens)
        prompts += _prompts(path, prompt, len(tokens))
    return PromptedTokens(np.concatenate(rows), prompts)


def _read(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SettingsError(f"the token file {path} cannot be read: {error}") from error
    return array


def _rows(path: Path, array: NDArray[Any], grid: int) -> IntArray:
    if array.dtype.kind not in "iu":
        raise SettingsError(f"the token file {path} holds {array.dtype}, but tokens are integers")
    if array.shape[-1:] != (grid * grid,) and array.shape[-2:] != (grid, grid):
        raise SettingsError(
            f"the token file {path} has shape {list(array.shape)}, "
            f"but it must end in {grid * grid} tokens, or in {grid} x {grid}"
        )
    return array.reshape(-1, grid * grid).astype(np.int64)


def _prompts(path: Path, prompt: str, rows: int) -> Iterator[str]:
    lines = prompt.splitlines() if rows > 1 else [prompt]
    if len(lines) not in (1, rows):
        raise SettingsError(
            f"the token file {path} holds {rows} pictures, but its prompt has {len(lines)} lines; "
            "there must be one for each, or one for all"
        )
    yield from lines if len(lines) == rows else lines * rows
