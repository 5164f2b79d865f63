"""Cleaning of captions; what is expected was recorded from the published implementation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vvs.runtime.captions import clean_caption

RECORDED = (
    (
        "A Blue Porsche 356 parked in front of a yellow brick wall.",
        "a blue porsche 356 parked in front of a yellow brick wall.",
    ),
    ("  A <b>bold</b> cat &amp; a dog &lt;3  ", "a bold cat a dog <3"),
    ("see https://example.com/a/b?c=d for more", "see ?c=d for more"),
    ("visit www.example.com now!", "visit now!"),
    ("this-is-my-cute-cat-photo", "this is my cute cat photo"),
    ("this_is_my_dog", "this_is_my_dog"),
    ("DSC_0042.JPG: sunset at the beach", "sunset at the beach"),
    ("Sunset 1920x1080 wallpaper download free", "sunset wallpaper"),
    ("@someone posted #123 a picture #cats", "posted a picture cats"),
    ("free worldwide shipping on shoes", "free on shoes"),
    ("“Quoted” text — with dashes…", '"quoted" text - with dashes…'),
    ("'single quoted'", "single quoted"),
    ("a <person> riding a horse", "a person riding a horse"),
    ("192.168.0.1 is home", "is home"),
    ("order 12345678 today", "order today"),
    ("a cat.A dog,a bird", "a cat. a dog, a bird"),
    ("猫 a cat 犬", "a cat"),
    ("a+b%20c", "a b c"),
    ("click for details page 12", ""),
    ("jc6640 lamp jc6640vc chair 6640vc231", "lamp chair"),
    ("ﬁne ﬀ Ｆｕｌｌ", "fine ff full"),
    ("café naïve", "café naïve"),
    ("a*b*c ~tilde~ (paren) [x]{y}|z\\w/q", "a b c tilde paren x y z w q"),
    ("", ""),
    ("....", ""),
    ("Mail me: john@example.com", "mail me: john"),
    ("a &quot;quoted&quot; word", 'a "quoted" word'),
    ("time 5:30 ", "time 5:30"),
    ("hello\\nworld\nagain", "hello world again"),
    ('"""AUSVERKAUFT"""', "ausverkauft"),
    ("title : subtitle", "title: subtitle"),
    ("a < b and c > d", "a < b and c > d"),
    ("<script>x</script>text", "text"),
    ("&#39;tis", "tis"),
    ("a\x07bell", "abell"),
    ("1 x 2", "1 x 2"),
    ("10x15 cm print", "cm print"),
    ("<img src='x.png'>a photo", "a photo"),
    (".hidden", ""),
    ("http:abc", "bc"),
    ("don’t stop", "don't stop"),
)


@pytest.mark.parametrize(("caption", "expected"), RECORDED)
def test_as_published(caption: str, expected: str) -> None:
    assert clean_caption(caption) == expected


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    """Nothing breaks it, and what is left is one stripped line in lower case without markup or brackets."""
    cleaned = clean_caption(text)
    assert cleaned == cleaned.strip()
    assert cleaned.isprintable() or not cleaned.isascii()
    assert not set(cleaned) & set("()[]{}|*~#")
