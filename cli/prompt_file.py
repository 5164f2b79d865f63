"""Prompt files: one prompt per line; empty lines and those that start with # are none."""

from pathlib import Path

from vvs.errors import PromptError


def read_prompt_file(file: Path) -> list[str]:
    """The prompts of a UTF-8 text file.

    Raises:
        PromptError: it is not UTF-8 text.

    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise PromptError(f"{file} is not UTF-8 text, but a file of prompts must be") from None
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
