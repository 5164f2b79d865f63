"""What a drafter is trained on: a folder of pictures or of token files, or one token file, with prompts."""

import hashlib
import json
import os
from collections.abc import Sequence
from math import isqrt
from pathlib import Path

from rich.console import Console

from vvs.engine import Conditioning
from vvs.errors import SettingsError
from vvs.export.checkpoint import add_tensors
from vvs.export.graphs import EncodePromptGraph
from vvs.export.model_set import ModelSet
from vvs.export.training.pictures import SUFFIXES, tokenise
from vvs.export.training.prompted_files import PromptedFile, find_prompted_files
from vvs.export.training.token_examples import TokenExamples, load_examples, read_note, token_width
from vvs.export.training.token_files import SUFFIX, captioned_token_file, read_token_files
from vvs.manifest import TensorSpec
from vvs.runtime.prompts import Prompted, encode_for

ARRAY_FILES = (".npz", ".safetensors")
KEPT_TOKENS = "tokens.npz"
TOKEN_BYTES = 8


def grid_of(data: Path) -> int | None:
    """Tokens a side of the images in a file of arrays; None where it is no such file or no square."""
    if data.suffix not in ARRAY_FILES:
        return None
    width = token_width(data)
    grid = isqrt(width)
    return grid if grid * grid == width else None


def read_examples(models: ModelSet, data: Path, out: Path, console: Console) -> TokenExamples:
    """Read or make examples; tokens of pictures are kept in ``out``, for the next run over the same pictures.

    Args:
        models: whose tokenizers take prompts and pictures apart.
        data: a file of arrays (``.npz``, ``.safetensors``), a ``.npy`` file of tokens with prompts beside it,
            or a folder of pictures or of ``.npy`` files.
        out: the drafter's folder.
        console: where progress is shown.

    Raises:
        SettingsError: data that cannot be read or do not fit, or ``out`` has tokens of other pictures.
        PromptError: a prompt that the model cannot take.

    """
    if data.suffix in ARRAY_FILES:
        return load_examples(data, _inputs(models), models.geometry)
    if data.suffix == SUFFIX:
        return _of_token_files(models, [captioned_token_file(data)])
    files = find_prompted_files(data, SUFFIXES | {SUFFIX}, "pictures or token files")
    suffixes = {file.path.suffix == SUFFIX for file in files}
    if len(suffixes) > 1:
        raise SettingsError(
            f"the folder {data} holds both pictures and token files ({SUFFIX}); keep one kind"
        )
    if suffixes == {True}:
        return _of_token_files(models, files)
    note = _note(models, files, data)
    kept = out / KEPT_TOKENS
    if kept.is_file():
        if read_note(kept) != note:
            raise SettingsError(
                f"{kept} holds tokens of other pictures than {data}, or of another image tokenizer; "
                "choose another folder for the drafter, or remove it"
            )
        console.print(f"taking the tokens of {kept}, of the same pictures")
        return load_examples(kept, _inputs(models), models.geometry)
    examples = _of_pictures(models, files, console)
    examples.save(kept, note)
    return examples


def disk_of_tokens(models: ModelSet, data: Path, out: Path) -> int:
    """Bytes of the tokens of a folder of pictures that will be kept; 0 where none will be, or are already."""
    if not data.is_dir() or (out / KEPT_TOKENS).is_file():
        return 0
    pictures = sum(path.suffix.lower() in SUFFIXES for path in data.rglob("*"))
    return pictures * models.geometry.image_tokens * TOKEN_BYTES


def _of_token_files(models: ModelSet, files: Sequence[PromptedFile]) -> TokenExamples:
    tokens, prompts = read_token_files(files, models.geometry.grid)
    return TokenExamples(tokens, _encoded(models, prompts), _inputs(models), models.geometry)


def _of_pictures(models: ModelSet, pictures: list[PromptedFile], console: Console) -> TokenExamples:
    if "image tokenizer" in models.random_parts:
        raise SettingsError(
            f"{models.name} has no image tokenizer that turns pictures into tokens; "
            "give a folder that holds it and the target, a recipe, or token files"
        )
    # First, since they are quick to find wrong.
    conditioning = _encoded(models, [picture.prompt for picture in pictures])
    tokens = tokenise(models.vq, pictures, models.geometry.image_size, console)
    return TokenExamples(tokens, conditioning, _inputs(models), models.geometry)


def _encoded(models: ModelSet, prompts: Sequence[str]) -> Conditioning:
    if models.conditioning.kind == "caption":
        raise SettingsError(
            f"{models.name} has no text encoder that turns captions into states; "
            f"give one, or a file with the states ({', '.join(ARRAY_FILES)})"
        )
    prompted = Prompted(models.conditioning, models.geometry.prompt_length, models.read_tokenizer)
    return encode_for(prompted, prompts)


def _inputs(models: ModelSet) -> tuple[TensorSpec, ...]:
    return EncodePromptGraph(models.target, models.text_encoder).inputs


def _note(models: ModelSet, pictures: Sequence[PromptedFile], folder: Path) -> str:
    """A name for everything that the tokens of pictures are made from; of the files names and sizes."""
    digest = hashlib.sha256(str(models.geometry.image_size).encode())
    add_tensors(digest, models.vq.state_dict())
    for path, prompt in pictures:
        size = path.stat().st_size if path.is_file() else 0
        digest.update(json.dumps([os.path.relpath(path, folder), size, prompt]).encode())
    return digest.hexdigest()
