"""Checks of single settings, shared by the frozen dataclasses. Each failure is one SettingsError sentence."""

import math
from numbers import Integral, Real

from vvs.errors import SettingsError


def check_real(
    name: str,
    value: object,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raise unless ``value`` is a finite number within the bounds."""
    bounds = [f">= {at_least:g}"] if at_least > -math.inf else []
    bounds += [f"> {above:g}"] if above > -math.inf else []
    bounds += [f"<= {at_most:g}"] if at_most < math.inf else []
    bounds += [f"< {below:g}"] if below < math.inf else []
    wanted = f"a finite number {' and '.join(bounds)}".rstrip()
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(float(value)):
        raise SettingsError(f"{name} is {value!r}, but it must be {wanted}")
    if not (at_least <= float(value) <= at_most and above < float(value) < below):
        raise SettingsError(f"{name} is {value!r}, but it must be {wanted}")


def check_integer(name: str, value: object, *, at_least: int) -> None:
    """Raise unless ``value`` is an integer of at least ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise SettingsError(f"{name} is {value!r}, but it must be an integer >= {at_least}")


def check_flag(name: str, value: object) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise SettingsError(f"{name} is {value!r}, but it must be true or false")
