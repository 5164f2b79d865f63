"""Prompts of models that the tiny bundle is not: classes and caption states."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from vvs.errors import BundleError, PromptError
from vvs.manifest import ConditioningSpec
from vvs.runtime.bundle import Bundle
from vvs.runtime.prompts import encode, label


def of_kind(tiny_bundle: Path, kind: ConditioningSpec) -> Bundle:
    bundle = Bundle.open(tiny_bundle, verify=False)
    return Bundle(bundle.path, dataclasses.replace(bundle.manifest, conditioning=kind))


def test_words(tiny_bundle: Path) -> None:
    encoded = encode(Bundle.open(tiny_bundle), ["Red DRESS", "a blue shirt"])
    np.testing.assert_array_equal(encoded["token_ids"], [[3, 6, 0, 0, 0, 0], [2, 4, 7, 0, 0, 0]])
    np.testing.assert_array_equal(encoded["mask"].sum(1), [2, 3])


def test_classes(tiny_bundle: Path) -> None:
    bundle = of_kind(tiny_bundle, ConditioningSpec("class", classes=10))
    np.testing.assert_array_equal(encode(bundle, [3, "9"])["class_ids"], [3, 9])
    for wrong in (10, -1, "ten", np.zeros((2, 3))):
        with pytest.raises(PromptError, match=r"the number of a class, 0\.\.9"):
            encode(bundle, [wrong])


def test_class_names(tiny_bundle: Path) -> None:
    bundle = of_kind(tiny_bundle, ConditioningSpec("class", classes=1000, class_names="imagenet"))
    np.testing.assert_array_equal(encode(bundle, ["goldfish", "207", 3])["class_ids"], [1, 207, 3])
    with pytest.raises(PromptError, match="no class is called 'dragon ship'"):
        encode(bundle, ["dragon ship"])
    with pytest.raises(PromptError, match=r"the name or the number of a class, 0\.\.999"):
        encode(bundle, ["1000"])


def t5_bundle(tiny_bundle: Path, end: str = "</s>") -> Bundle:
    """A bundle that is prompted with captions, whose tokens are words."""
    words = ("<pad>", end, "<unk>", "a", "red", "dress")
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_padding(length=9)  # as some tokenizer files ask for
    bundle = of_kind(tiny_bundle, ConditioningSpec("t5", caption_dim=4))
    bundle.__dict__["tokenizer"] = tokenizer
    return bundle


def test_texts(tiny_bundle: Path) -> None:
    """Cleaned, ended, padded right, and cut so that the end still fits."""
    bundle = t5_bundle(tiny_bundle)
    encoded = encode(bundle, ["A <b>RED</b> dress! http://x.com", "a a a a a a a a"])
    np.testing.assert_array_equal(encoded["token_ids"], [[3, 4, 5, 2, 1, 0], [3, 3, 3, 3, 3, 1]])
    np.testing.assert_array_equal(encoded["mask"].sum(1), [5, 6])
    with pytest.raises(PromptError, match="nothing is left of the prompt"):
        encode(bundle, ["http://example.com"])
    with pytest.raises(PromptError, match="prompted with a caption"):
        encode(bundle, [3])
    with pytest.raises(BundleError, match="no '</s>', so it is none of a T5"):
        encode(t5_bundle(tiny_bundle, end="[SEP]"), ["a"])


def test_captions(tiny_bundle: Path) -> None:
    bundle = of_kind(tiny_bundle, ConditioningSpec("caption", caption_dim=4))
    encoded = encode(bundle, [np.ones((2, 4)), np.ones((6, 4), np.float16)])
    assert encoded["hidden_states"].shape == (2, 6, 4)
    np.testing.assert_array_equal(encoded["mask"].sum(1), [2, 6])
    with pytest.raises(PromptError, match="7 tokens, but this model takes at most 6"):
        encode(bundle, [np.ones((7, 4))])
    with pytest.raises(PromptError, match=r"floats \[n, 4\]"):
        encode(bundle, ["a red dress"])
    with pytest.raises(PromptError, match="finite"):
        encode(bundle, [np.full((1, 4), np.nan)])


def test_labels() -> None:
    assert label("red") == "red"
    assert label(7) == "7"
    assert label(np.zeros((2, 3))) == "caption states [2, 3]"
