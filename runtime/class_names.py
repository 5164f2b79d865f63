"""Class names: which class number a word stands for, for models that are prompted with classes.

A class has several names; a name that several classes share belongs to the one that has it first in its
list, and stands for nothing if several do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from importlib.resources import files

from vvs.errors import PromptError, SettingsError

FILES = {"imagenet": "imagenet_classes.tsv"}
"""Name sets, and the files they lie in: a line a class, its WordNet id, its names and what it is."""
NEAR = 3
"""Names suggested in place of an unknown one."""


@dataclass(frozen=True)
class ClassName:
    """One class: its names, the usual one first, and a definition."""

    number: int
    names: tuple[str, ...]
    definition: str


@dataclass(frozen=True)
class ClassNames:
    """All classes of a data set, in the order of their numbers."""

    classes: tuple[ClassName, ...]

    def number(self, name: str) -> int:
        """The number of the class called ``name``; case, underscores and extra spaces do not matter.

        Raises:
            PromptError: no class has that name, or several have; the sentence says what there is.

        """
        key = _key(name)
        found = self._usual.get(key) or self._all.get(key) or []
        if len(found) == 1:
            return found[0].number
        if found:
            choices = " or ".join(f"{c.number} ({c.names[0]}: {c.definition})" for c in found)
            raise PromptError(f"{name!r} is the name of several classes: ask for {choices}")
        near = self._near(key)
        hint = f"; near are {', '.join(near)}" if near else ""
        raise PromptError(
            f"no class is called {name!r}{hint}; "
            f"a name or a number 0..{len(self.classes) - 1} is what this model is prompted with"
        )

    def _near(self, key: str) -> list[str]:
        """Names that have ``key`` as a word, then names like it."""
        holding = [name for name in self._all if key in name.split()]
        close = get_close_matches(key, list(self._all), n=NEAR, cutoff=0.7)
        near = list(dict.fromkeys([*holding, *close]))[:NEAR]
        return [f"{name} ({self._all[name][0].number})" for name in near]

    @cached_property
    def _usual(self) -> Mapping[str, list[ClassName]]:
        """Classes by the first of their names."""
        return _by_name((c.names[0], c) for c in self.classes)

    @cached_property
    def _all(self) -> Mapping[str, list[ClassName]]:
        """Classes by any of their names."""
        return _by_name((name, c) for c in self.classes for name in c.names)


def _by_name(pairs: Iterable[tuple[str, ClassName]]) -> dict[str, list[ClassName]]:
    named: dict[str, list[ClassName]] = {}
    for name, one in pairs:
        named.setdefault(_key(name), []).append(one)
    return named


def _key(name: str) -> str:
    return " ".join(name.lower().replace("_", " ").split())


def _parsed(lines: Sequence[str]) -> ClassNames:
    fields = (line.split("\t") for line in lines)
    return ClassNames(
        tuple(ClassName(i, tuple(names.split(", ")), meaning) for i, (_, names, meaning) in enumerate(fields))
    )


@cache
def class_names(which: str) -> ClassNames:
    """A name set that comes with this package."""
    if which not in FILES:
        raise SettingsError(f"class names are {which!r}, but there are only {', '.join(FILES)}")
    text = files("vvs.runtime").joinpath(FILES[which]).read_text(encoding="utf-8")
    return _parsed(text.splitlines())
