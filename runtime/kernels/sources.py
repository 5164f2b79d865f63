"""The kernels' source as one text, with checks that the table and the state's columns say what it says."""

import re
from enum import IntEnum
from functools import cache
from pathlib import Path

from vvs.runtime.device.calls import CONDITION, Kernel, Parameter
from vvs.runtime.kernels.state import (
    MAX_NODES,
    MAX_PATH,
    Choice,
    Counter,
    Decision,
    Fault,
    Phase,
    Real,
    StepColumn,
)
from vvs.runtime.kernels.table import KERNELS

FOLDER = Path(__file__).parent
ENTRY = "kernels.cu"

C_TYPES = {
    "bool": "bool",
    "uint8": "unsigned char",
    "int32": "int",
    "int64": "long long",
    "float32": "float",
    "float64": "double",
    CONDITION: "Condition",
}

_INCLUDE = re.compile(r'^#include "(?P<name>[^"]+)"$')


@cache
def source(entry: str = ENTRY) -> str:
    """The text of ``entry`` and of all files of this folder that it includes, each once."""
    return "\n".join(_lines(entry, set()))


@cache
def checked_source() -> str:
    """The kernels, and static assertions that they have the parameters and columns that Python has."""
    return f"{source()}\n{_checks()}\n"


def _lines(name: str, included: set[str]) -> list[str]:
    if name in included:
        return []
    included.add(name)
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate((FOLDER / name).read_text(encoding="utf-8").splitlines(), start=1):
        include = _INCLUDE.match(line)
        if include:
            lines += [*_lines(include["name"], included), f'#line {number + 1} "{name}"']
        else:
            lines.append("" if line == "#pragma once" else line)
    return lines


def _checks() -> str:
    enums: tuple[type[IntEnum], ...] = (Counter, Phase, Decision, Choice, Real, StepColumn)
    values = {member.name: int(member) for enum in enums for member in enum}
    values |= {f"FAULT_{fault.name}": int(fault) for fault in Fault}
    values |= {"MAX_NODES": MAX_NODES, "MAX_PATH": MAX_PATH}
    values |= {"COUNTERS": len(Counter), "CHOICES": len(Choice), "REALS": len(Real)}
    values |= {"STEP_COLUMNS": len(StepColumn)}
    return "\n".join(
        [
            '#line 1 "the table of kernels"',
            "template <class A, class B> struct same { static constexpr bool value = false; };",
            "template <class A> struct same<A, A> { static constexpr bool value = true; };",
            *(f'static_assert({name} == {value}, "{name}");' for name, value in values.items()),
            *(
                f"static_assert(same<decltype({kernel.name}), void({_signature(kernel)})>::value, "
                f'"{kernel.name}");'
                for kernel in KERNELS
            ),
        ]
    )


def _signature(kernel: Kernel) -> str:
    return ", ".join(map(_c_type, kernel.parameters))


def _c_type(parameter: Parameter) -> str:
    name = C_TYPES[parameter.dtype]
    if not parameter.pointer:
        return name
    return f"{name}*" if parameter.writes else f"const {name}*"
