"""Names of ImageNet classes: found, suggested, and told apart."""

from __future__ import annotations

import pytest

from vvs.errors import PromptError, SettingsError
from vvs.runtime.class_names import class_names


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("golden retriever", 207),
        ("Golden_Retriever", 207),
        ("Tinca tinca", 0),
        ("valley", 979),
        ("vale", 979),
        ("toilet tissue", 999),
        ("tank suit", 639),
        ("tub", 876),  # also another name of "barrel", which is not the usual one
    ],
)
def test_names(name: str, number: int) -> None:
    assert class_names("imagenet").number(name) == number


def test_every_class_can_be_asked_for() -> None:
    names = class_names("imagenet")
    assert len(names.classes) == 1000
    unclear = set()
    for one in names.classes:
        try:
            assert names.number(one.names[0]) == one.number
        except PromptError:
            unclear.add(one.names[0].lower())
    assert unclear == {"crane", "maillot", "cardigan"}


def test_a_name_of_several_classes() -> None:
    with pytest.raises(
        PromptError, match=r"'crane' is the name of several classes: ask for 134 .*bird.* or 517"
    ):
        class_names("imagenet").number("crane")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("goldfihs", r"near are goldfish \(1\)"), ("retriever", r"golden retriever \(207\)")],
)
def test_an_unknown_name(name: str, hint: str) -> None:
    with pytest.raises(PromptError, match=f"no class is called '{name}'.*{hint}"):
        class_names("imagenet").number(name)
    with pytest.raises(PromptError, match="no class is called 'qqqqq'; a name or a number"):
        class_names("imagenet").number("qqqqq")


def test_unknown_sets() -> None:
    with pytest.raises(SettingsError, match="class names are 'places', but there are only imagenet"):
        class_names("places")
