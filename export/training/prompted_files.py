"""Prompted files: pictures or token files of a folder, each with its prompt.

Prompts come from ``metadata.jsonl`` (an object a line: ``file_name``, and ``text``, ``prompt`` or ``label``),
from a ``.txt`` file beside each file, or from the name of the folder that a file lies in.
"""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from vvs.errors import SettingsError

METADATA = "metadata.jsonl"
PROMPT_FIELDS = ("text", "prompt", "label")


class PromptedFile(NamedTuple):
    """A file, and the words, or the class, that ask for what it shows."""

    path: Path
    prompt: str


def find_prompted_files(folder: Path, suffixes: Collection[str], what: str) -> list[PromptedFile]:
    """Every file of a folder with its prompt, in order of their paths.

    Args:
        folder: also what lies in folders in it is taken.
        suffixes: of the files, unless a list names them.
        what: they are called in sentences, such as ``pictures``.

    Raises:
        SettingsError: there is no folder, or no such file, or one without a prompt.

    """
    if not folder.is_dir():
        raise SettingsError(f"there is no folder of {what} at {folder}")
    metadata = folder / METADATA
    files = list(_listed(metadata) if metadata.is_file() else _beside(folder, suffixes))
    if not files:
        raise SettingsError(f"the folder {folder} holds no {what} ({', '.join(sorted(suffixes))})")
    return files


def with_caption(path: Path) -> PromptedFile | None:
    """A file with the prompt of the ``.txt`` file beside it; None if there is none."""
    caption = path.with_suffix(".txt")
    return PromptedFile(path, _text(caption).strip()) if caption.is_file() else None


def _listed(metadata: Path) -> Iterator[PromptedFile]:
    for number, line in enumerate(_text(metadata).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            prompt = next(record[field] for field in PROMPT_FIELDS if field in record)
            yield PromptedFile(metadata.parent / record["file_name"], str(prompt))
        except (ValueError, TypeError, KeyError, StopIteration) as error:
            raise SettingsError(
                f"line {number} of {metadata} must be an object with file_name "
                f"and one of {', '.join(PROMPT_FIELDS)}"
            ) from error


def _beside(folder: Path, suffixes: Collection[str]) -> Iterator[PromptedFile]:
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in suffixes):
        captioned = with_caption(path)
        if captioned is not None:
            yield captioned
        elif path.parent != folder:
            yield PromptedFile(path, path.parent.name)
        else:
            raise SettingsError(
                f"{path} has no prompt: put it into {METADATA}, into {path.stem}.txt beside it, "
                "or the file into a folder named for its class"
            )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
