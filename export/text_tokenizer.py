"""Tokenizers of a bundle: read and checked, or made up where the weights are."""

import json
import string
from pathlib import Path

from vvs.errors import CheckpointError
from vvs.manifest import TOKENIZER_FILE

SENTENCEPIECE_FILE = "spiece.model"
UNLIKELY = -10.0
"""Log-probability of every letter of the made-up tokenizer."""


def read_tokenizer(path: Path, most_ids: int | None = None) -> str:
    """Contents of a ``tokenizer.json``.

    Args:
        path: the file.
        most_ids: ids that the text encoder has embeddings for; None does not check.

    Raises:
        CheckpointError: it is missing, is no tokenizer, or has ids without an embedding.

    """
    from tokenizers import Tokenizer

    if not path.is_file() and (path.parent / SENTENCEPIECE_FILE).is_file():
        raise CheckpointError(
            f"{path.parent} has its tokenizer as {SENTENCEPIECE_FILE} only, but a bundle needs "
            f"{TOKENIZER_FILE}, which AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of "
            "transformers writes beside it"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the tokenizer {path} cannot be read: {error}") from error
    try:
        ids = Tokenizer.from_str(text).get_vocab_size()
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} is not a tokenizer: {error}") from error
    if most_ids is not None and ids > most_ids:
        raise CheckpointError(
            f"the tokenizer {path} has {ids} ids, but the text encoder has embeddings for {most_ids}"
        )
    return text


def stand_in_tokenizer() -> str:
    """A tokenizer in T5's format that knows letters instead of words, for encoders of random weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    special = ["<pad>", "</s>", "<unk>"]
    letters = "\u2581" + string.ascii_lowercase + string.digits + string.punctuation
    pieces = [(piece, 0.0) for piece in special] + [(letter, UNLIKELY) for letter in letters]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(special)
    # One form for the same contents, so that bundles are reproducible.
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, sort_keys=True)
