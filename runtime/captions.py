"""Captions: text cleaned as LlamaGen cleaned the captions it was trained on.

The steps, and their order, are those of its text encoder (which took them from DeepFloyd IF): lower case;
links, markup, file names, numbers of articles and other leftovers of web pages removed; quotes and dashes
made plain. It is applied twice, as there. One difference: text that was decoded with the wrong character
set stays as it is, where the published code tries to guess the right one.
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from html.parser import HTMLParser
from urllib.parse import unquote_plus

_Rule = tuple[re.Pattern[str], str]


def _rules(*rules: tuple[str, str]) -> tuple[_Rule, ...]:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in rules)


_FILES = "(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"
_DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0"
    "\ufe31\ufe32\ufe58\ufe63\uff0d"
)

_LINKS = _rules(
    (r"<person>", "person"),  # how some data sets hide names; not markup
    (
        r"\b(?:(?:https?|www):(?:/{1,3}|[a-zA-Z0-9%])"
        r"|[a-zA-Z0-9.\-]+\.(?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@))",
        "",
    ),
)
_CHARACTERS = _rules(
    (r"@\w+\b", ""),  # nicknames
    ("[\u31c0-\u9fff]+", ""),  # Chinese characters and their kin
    (f"[{_DASHES}]+", "-"),
    ("[`\u00b4\u00ab\u00bb\u201c\u201d\u00a8]", '"'),
    ("[\u2018\u2019]", "'"),
    (r"&quot;?|&amp", ""),
    (r"\d{1,3}(?:\.\d{1,3}){3}", " "),  # addresses of computers
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.{_FILES}", ""),
    (r"[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
_JOINED = re.compile("[-_]")
_MOST_JOINED = 3
"""With more hyphens and underscores than this, they stand for spaces: this-is-my-cute-cat."""
_LEFTOVERS = _rules(
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # jc6640
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),  # jc6640vc
    (r"\b\d+[a-zA-Z]+\d+\b", ""),  # 6640vc231
    (r"(worldwide\s+)?(free\s+)?shipping", ""),
    (r"(free\s)?download(\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b{_FILES}(\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),  # j2d1a2a
    ("\\b\\d+\\.?\\d*[x\u0445\u00d7]\\d+\\.?\\d*\\b", ""),  # 800x600; also by a Cyrillic x
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)


def clean_caption(text: str) -> str:
    """A caption as the text encoder of LlamaGen's text-conditional models expects it; it may become empty."""
    return _cleaned_once(_cleaned_once(text))


def _cleaned_once(text: str) -> str:
    text = unquote_plus(text).strip().lower()
    text = _without_markup(_replaced(text, _LINKS))
    text = _replaced(text, _CHARACTERS)
    if len(_JOINED.findall(text)) > _MOST_JOINED:
        text = _JOINED.sub(" ", text)
    text = html.unescape(html.unescape(_plain(text))).strip()
    return _replaced(text, _LEFTOVERS).strip()


def _replaced(text: str, rules: Sequence[_Rule]) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


class _TextOnly(HTMLParser):
    """Collects the text between tags, scripts and styles left out."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.parts.append(data)


def _without_markup(text: str) -> str:
    parser = _TextOnly()
    parser.feed(text)
    parser.close()
    return "".join(parser.parts)


def _plain(text: str) -> str:
    """Wide letters and ligatures spelled out, accents composed, control characters left out."""
    spelled = (
        unicodedata.normalize("NFKC", c) if "\ufb00" <= c <= "\ufb06" or "\uff01" <= c <= "\uff5e" else c
        for c in text
    )
    kept = (c for c in spelled if unicodedata.category(c[0]) not in {"Cc", "Cs"} or c in "\t\n\r")
    return unicodedata.normalize("NFC", "".join(kept))
