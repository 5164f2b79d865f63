"""Prompts: what a user asks for, turned into the inputs of a bundle's prompt encoder.

A model is prompted with words or a caption (its tokenizer is in the bundle), with the number or the name of a
class, or with the hidden states of a text encoder that the caller has run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vvs.arrays import BoolArray, Float32Array, IntArray
from vvs.engine import Conditioning
from vvs.errors import BundleError, PromptError
from vvs.manifest import ConditioningSpec
from vvs.runtime.bundle import Bundle
from vvs.runtime.captions import clean_caption
from vvs.runtime.class_names import class_names

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNKNOWN = "[UNK]"
END = "</s>"
"""What T5 ends a text with."""
WORDS_LISTED = 80
"""Of a longer vocabulary a message lists only the beginning, and words near the one that was given."""

Prompt = str | int | NDArray[Any]
"""Words or a caption; a class, by number or by name; or caption states ``[n, C]``."""


@dataclass(frozen=True)
class Prompted:
    """What turning prompts into a model's inputs takes."""

    conditioning: ConditioningSpec
    prompt_length: int
    """P, rows of a prompt."""
    read_tokenizer: Callable[[], "Tokenizer"]
    """Called for models whose prompts are words or captions."""


def encode(bundle: Bundle, prompts: Sequence[Prompt]) -> Conditioning:
    """Turn R prompts into the inputs of a bundle's prompt encoder; see :func:`encode_for`."""
    manifest = bundle.manifest
    prompted = Prompted(manifest.conditioning, manifest.geometry.prompt_length, lambda: bundle.tokenizer)
    return encode_for(prompted, prompts)


def encode_for(model: Prompted, prompts: Sequence[Prompt]) -> Conditioning:
    """Turn R prompts into the prompt encoder's inputs, each ``[R, ...]``.

    Raises:
        PromptError: a prompt of the wrong kind, too long, or with a word or class the model does not know.

    """
    return _ENCODERS[model.conditioning.kind](model, prompts)


def encode_each(model: Prompted, prompts: Sequence[str]) -> dict[str, Conditioning]:
    """The prompt encoder's inputs for each prompt alone, each ``[1, ...]``; as :func:`encode_for`."""
    return {prompt: encode_for(model, [prompt]) for prompt in prompts}


def label(prompt: Prompt) -> str:
    """Short text that stands for a prompt in file names, metadata and on contact sheets."""
    return str(prompt) if isinstance(prompt, str | int) else f"caption states {list(prompt.shape)}"


def known_words(tokenizer: "Tokenizer") -> list[str]:
    """Every word of a tokenizer, its special tokens left out, in alphabetical order."""
    return sorted(word for word in tokenizer.get_vocab() if not word.startswith("["))


def _encode_words(model: Prompted, prompts: Sequence[Prompt]) -> Mapping[str, NDArray[Any]]:
    P, tokenizer = model.prompt_length, model.read_tokenizer()
    sequences = []
    for prompt in prompts:
        if not isinstance(prompt, str) or not prompt.strip():
            raise PromptError(f"a prompt is {prompt!r}, but this model is prompted with words")
        ids = _word_ids(tokenizer, prompt)
        if len(ids) > P:
            raise PromptError(f"the prompt {prompt!r} has {len(ids)} words, but this model takes at most {P}")
        sequences.append(ids)
    return _padded(sequences, P)


def _padded(sequences: Sequence[Sequence[int]], length: int) -> Mapping[str, NDArray[Any]]:
    """Token ids ``[R, length]``, zeros on the right, and which of them are real."""
    token_ids: IntArray = np.zeros((len(sequences), length), np.int64)
    mask: BoolArray = np.zeros((len(sequences), length), np.bool_)
    for i, ids in enumerate(sequences):
        token_ids[i, : len(ids)] = ids
        mask[i, : len(ids)] = True
    return {"token_ids": token_ids, "mask": mask}


def _encode_texts(model: Prompted, prompts: Sequence[Prompt]) -> Mapping[str, NDArray[Any]]:
    P, tokenizer = model.prompt_length, model.read_tokenizer()
    return _padded([_caption_ids(tokenizer, prompt, P) for prompt in prompts], P)


def _caption_ids(tokenizer: "Tokenizer", prompt: Prompt, most: int) -> list[int]:
    """Ids of a cleaned caption, cut so that it ends within ``most`` tokens, as the published model does."""
    if not isinstance(prompt, str) or not prompt.strip():
        raise PromptError(f"a prompt is {prompt!r}, but this model is prompted with a caption")
    caption = clean_caption(prompt)
    if not caption:
        raise PromptError(
            f"nothing is left of the prompt {prompt!r}: "
            "links, markup and odd characters are removed from captions"
        )
    end = tokenizer.token_to_id(END)
    if end is None:
        raise BundleError(f"the bundle's tokenizer has no {END!r}, so it is none of a T5")
    encoding = tokenizer.encode(caption, add_special_tokens=False)
    ids = [token for token, real in zip(encoding.ids, encoding.attention_mask, strict=True) if real]
    return [*ids[: most - 1], end]


def _word_ids(tokenizer: "Tokenizer", prompt: str) -> list[int]:
    encoding = tokenizer.encode(prompt, add_special_tokens=False)
    unknown = tokenizer.token_to_id(UNKNOWN)
    for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if token == unknown:
            raise PromptError(_unknown_word(prompt[start:end], prompt, known_words(tokenizer)))
    # A tokenizer may pad by itself.
    return [token for token, real in zip(encoding.ids, encoding.attention_mask, strict=True) if real]


def _unknown_word(word: str, prompt: str, known: list[str]) -> str:
    near = get_close_matches(word.lower(), known, n=3, cutoff=0.6)
    hint = f" (near: {', '.join(near)})" if near else ""
    listed = ", ".join(known[:WORDS_LISTED]) + (", ..." if len(known) > WORDS_LISTED else "")
    return (
        f"this model does not know the word {word!r} of the prompt {prompt!r}{hint}; "
        f"its {len(known)} words are {listed}"
    )


def _encode_classes(model: Prompted, prompts: Sequence[Prompt]) -> Mapping[str, NDArray[Any]]:
    spec = model.conditioning
    return {"class_ids": np.array([_class_id(prompt, spec) for prompt in prompts], np.int64)}


def _class_id(prompt: Prompt, spec: ConditioningSpec) -> int:
    try:
        number = int(prompt) if isinstance(prompt, str | int | np.integer) else -1
    except ValueError:
        if spec.class_names and str(prompt).strip():
            return class_names(spec.class_names).number(str(prompt))
        number = -1
    if not 0 <= number < spec.classes:
        name = "the name or the number" if spec.class_names else "the number"
        raise PromptError(
            f"a prompt is {prompt!r}, "
            f"but this model is prompted with {name} of a class, 0..{spec.classes - 1}"
        )
    return number


def _encode_captions(model: Prompted, prompts: Sequence[Prompt]) -> Mapping[str, NDArray[Any]]:
    P, C = model.prompt_length, model.conditioning.caption_dim
    hidden_states: Float32Array = np.zeros((len(prompts), P, C), np.float32)
    mask: BoolArray = np.zeros((len(prompts), P), np.bool_)
    for i, prompt in enumerate(prompts):
        states = np.asarray(prompt)
        if states.ndim != 2 or states.shape[1] != C or states.dtype.kind != "f" or not states.shape[0]:
            raise PromptError(
                f"a prompt is {type(prompt).__name__} of shape {states.shape}, but this model is prompted "
                f"with the hidden states of a text encoder, floats [n, {C}] with n >= 1"
            )
        if states.shape[0] > P:
            raise PromptError(f"a caption has {states.shape[0]} tokens, but this model takes at most {P}")
        if not np.isfinite(states).all():
            raise PromptError("the caption states of a prompt must be finite, but at least one is not")
        hidden_states[i, : states.shape[0]] = states
        mask[i, : states.shape[0]] = True
    return {"hidden_states": hidden_states, "mask": mask}


_ENCODERS: Mapping[str, Callable[[Prompted, Sequence[Prompt]], Conditioning]] = {
    "words": _encode_words,
    "t5": _encode_texts,
    "class": _encode_classes,
    "caption": _encode_captions,
}
