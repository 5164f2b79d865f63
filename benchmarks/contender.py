"""Contender: one named way of decoding in a comparison, written in one line.

``vvs policy=uniform:3 acceptance=exact tree=k4-d3-n12`` is a mode and, after it, settings that differ
from what the bundle recommends.
"""

from dataclasses import dataclass

from vvs.config import GenerationConfig
from vvs.errors import SettingsError
from vvs.runtime.pipeline import Pipeline

NUMBERS: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_p": float,
    "cfg_scale": float,
    "draft_cfg_ratio": float,
    "top_k": int,
}

SWITCHES = ("coupled",)


@dataclass(frozen=True)
class Contender:
    """A label and the configuration it stands for."""

    label: str
    config: GenerationConfig

    @classmethod
    def parse(cls, text: str, pipeline: Pipeline) -> "Contender":
        """Read one line.

        Raises:
            SettingsError: no mode, a word that is no ``key=value``, or settings that do not go together.
        """
        words = text.split()
        if not words:
            raise SettingsError("a contender is empty, but it must start with a mode such as vvs")
        options: dict[str, object] = {}
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if not equals:
                raise SettingsError(f"{word!r} in the contender {text!r} must have the form key=value")
            options[key] = _value(key, value)
        return cls(" ".join(words), pipeline.configure(words[0], **options))


def _value(key: str, value: str) -> object:
    if key in SWITCHES:
        if value not in ("true", "false"):
            raise SettingsError(f"{key} is {value!r}, but it must be true or false")
        return value == "true"
    return _number(key, value) if key in NUMBERS else value


def _number(key: str, value: str) -> float | int:
    try:
        return NUMBERS[key](value)
    except ValueError as error:
        raise SettingsError(f"{key} is {value!r}, but it must be a number") from error
