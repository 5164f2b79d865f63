"""Plain data to frozen records, strictly: what JSON gave becomes dataclasses, or one sentence says why not.

Knows nothing of files; manifests and engine records read themselves with it.
"""

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from vvs.errors import BundleError, SettingsError

_T = TypeVar("_T")


def read_record(cls: type[_T], data: Any, where: str) -> _T:
    """Build the dataclass ``cls`` from plain data; unknown or missing fields and wrong types are errors.

    Args:
        cls: a dataclass whose annotations say what each field is.
        data: a mapping, as ``dataclasses.asdict`` or JSON gives it.
        where: how messages call the place of ``data``.

    Raises:
        BundleError: a sentence that names the field.

    """
    if not isinstance(data, Mapping):
        raise BundleError(f"{where} is {type(data).__name__}, but it must be an object")
    hints = get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = {f.name for f in fields}
    unknown = sorted(set(data) - names)
    if unknown:
        raise BundleError(f"{where} has a field {unknown[0]!r} that this version does not know")
    no_default = (f for f in fields if f.default is f.default_factory is dataclasses.MISSING)
    for f in no_default:
        if f.name not in data:
            raise BundleError(f"{where} lacks the field {f.name!r}")
    values = {name: _convert(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    try:
        return cls(**values)
    except SettingsError as error:
        raise BundleError(f"{where}: {error}") from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Check one value against its annotation and turn lists and objects into tuples and records."""
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return read_record(hint, value, where)  # type: ignore[arg-type]
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise BundleError(f"{where} is {type(value).__name__}, but it must be a list")
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is not None and issubclass(origin if isinstance(origin, type) else object, Mapping):
        if not isinstance(value, Mapping):
            raise BundleError(f"{where} is {type(value).__name__}, but it must be an object")
        return {str(key): _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    allowed = arguments if origin in (Union, UnionType) else (hint,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join(t.__name__ for t in allowed)
        raise BundleError(f"{where} is {value!r}, but it must be of type {names}")
    return value
