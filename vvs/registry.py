"""Registry: frozen dataclasses by name, written as ``name:key=value,key=value`` and read back.

So that a rule or a policy can be given on a command line and stored in an image's metadata. Adding one
is a small class and one registration; nothing else lists them.
"""

from collections.abc import Callable
from dataclasses import fields
from numbers import Integral
from typing import Any, Generic, TypeVar, get_type_hints

from vvs.errors import SettingsError

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])


class Registry(Generic[T]):
    """The known kinds of one thing, such as acceptance rules."""

    def __init__(self, what: str) -> None:
        self.what = what
        """What is registered, as error messages call it, such as ``acceptance rule``."""
        self._types: dict[str, type[Any]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all registered kinds."""
        return tuple(self._types)

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: make a frozen dataclass known as ``name``."""

        def add(kind: C) -> C:
            if name in self._types:
                raise SettingsError(f"there is already an {self.what} named {name!r}; choose another name")
            self._types[name] = kind
            return kind

        return add

    def parse(self, text: str) -> T:
        """Read ``name``, ``name:value`` (its first setting) or ``name:key=value,key=value``.

        Raises:
            SettingsError: unknown name or setting (the message lists what there is), or a value out of range.

        """
        name, _, rest = text.strip().partition(":")
        if name not in self._types:
            raise SettingsError(f"unknown {self.what} {name!r}; there is {', '.join(self._types)}")
        kind = self._types[name]
        known = [field.name for field in fields(kind)]
        values: dict[str, Any] = {}
        for position, item in enumerate(part for part in rest.split(",") if part.strip()):
            key, equals, value = (part.strip() for part in item.partition("="))
            if not equals and position == 0 and known:
                key, value = known[0], key
            if key not in known or not value:
                wanted = f"takes {', '.join(known)}" if known else "takes no settings"
                raise SettingsError(f"{text!r}: {item.strip()!r} is not a setting of {name}, which {wanted}")
            if key in values:
                raise SettingsError(f"{text!r}: {key} is given twice; give it once")
            values[key] = _read(f"{key} of {name}", value, get_type_hints(kind)[key])
        try:
            built: T = kind(**values)
        except TypeError:
            needed = ", ".join(field.name for field in fields(kind) if field.name not in values)
            raise SettingsError(f"{text!r}: {name} also needs {needed}") from None
        return built

    def describe(self, thing: T) -> str:
        """Write ``thing`` so that :meth:`parse` reads an equal one back."""
        name = next((name for name, kind in self._types.items() if kind is type(thing)), None)
        if name is None:
            known = ", ".join(self._types)
            raise SettingsError(
                f"{thing!r} is not a registered {self.what}; register its class, or use {known}"
            )
        settings = [field.name for field in fields(self._types[name])]
        values = [f"{setting}={_write(getattr(thing, setting))}" for setting in settings]
        return f"{name}:{','.join(values)}" if values else name


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # Through int and float, so that a numpy scalar is written as a plain number.
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))


def _read(what: str, text: str, kind: type) -> bool | int | float:
    if kind is bool:
        if text not in ("true", "false"):
            raise SettingsError(f"{what} is {text!r}, but it must be true or false")
        return text == "true"
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        wanted = "an integer" if kind is int else "a number"
        raise SettingsError(f"{what} is {text!r}, but it must be {wanted}") from None
