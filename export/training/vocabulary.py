"""The demo's tokenizer: one id a word, lower case, commas stand alone."""

from collections.abc import Sequence

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor

from vvs.errors import PromptError
from vvs.export.training.garments import words

PAD, UNKNOWN = "[PAD]", "[UNK]"


def build_tokenizer(prompt_length: int) -> Tokenizer:
    """A word-level tokenizer over :func:`garments.words`, padded right to ``prompt_length``."""
    vocabulary = {word: i for i, word in enumerate((PAD, UNKNOWN, *words()))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s+"), "removed"),
            pre_tokenizers.Split(Regex(r"[,.!?;:]"), "isolated"),
        ]
    )
    tokenizer.enable_padding(pad_id=0, pad_token=PAD, length=prompt_length)
    return tokenizer


def encode(tokenizer: Tokenizer, prompts: Sequence[str], prompt_length: int) -> tuple[Tensor, Tensor]:
    """Ids and validity ``[R, P]`` of prompts.

    Raises:
        PromptError: a prompt longer than P words.
    """
    encodings = tokenizer.encode_batch(list(prompts))
    for prompt, encoding in zip(prompts, encodings, strict=True):
        if len(encoding.ids) > prompt_length:
            raise PromptError(f"{prompt!r} has {len(encoding.ids)} words, more than {prompt_length}")
    ids = torch.tensor([e.ids for e in encodings])
    mask = torch.tensor([e.attention_mask for e in encodings], dtype=torch.bool)
    return ids, mask
