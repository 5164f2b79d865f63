"""Calls: the work a device can be given, as data: launch a kernel, run an engine, copy, fill.

A step of the loop is a *program*, a tuple of calls over fixed addresses. A call says what it reads and
writes, so that a device can check the order of work and a captured graph can be told from a changed one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from vvs.runtime.device.array import DeviceArray

CONDITION = "condition"
"""Dtype of a kernel's parameter through which it sets a condition."""


class Condition:
    """A number that kernels set and one node of a flow reads (:mod:`vvs.runtime.device.flow`)."""


Argument = DeviceArray | int | float | Condition


class Operand(NamedTuple):
    """Memory that a call touches."""

    array: DeviceArray
    writes: bool


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    name: str
    dtype: str
    """Of the scalar, or of what is pointed to; or :data:`CONDITION`."""
    pointer: bool
    writes: bool = False
    """Whether the kernel writes what is pointed to, or sets the condition."""


@dataclass(frozen=True)
class Kernel:
    """A kernel's name in its module, and its parameters in order."""

    name: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, eq=False)
class Launch:
    """Run a kernel on a grid of blocks."""

    kernel: Kernel
    arguments: tuple[Argument, ...]
    grid: tuple[int, int] = (1, 1)
    """Blocks along x and y."""
    block: int = 128
    """Threads per block; a host runs every block with as many as it likes."""
    shared_bytes: int = 0
    """Dynamic shared memory per block."""

    def __post_init__(self) -> None:
        names = [parameter.name for parameter in self.kernel.parameters]
        if len(self.arguments) != len(names):
            raise TypeError(
                f"the kernel {self.kernel.name} takes {len(names)} arguments, got {len(self.arguments)}"
            )
        for parameter, argument in zip(self.kernel.parameters, self.arguments, strict=True):
            if (
                isinstance(argument, DeviceArray) != parameter.pointer
                or (isinstance(argument, Condition) and parameter.dtype != CONDITION)
                or (isinstance(argument, DeviceArray) and argument.dtype != parameter.dtype)
            ):
                raise TypeError(
                    f"the kernel {self.kernel.name} takes {parameter.dtype} for {parameter.name!r}, "
                    f"got {argument}"
                )

    @property
    def name(self) -> str:
        """What a fault is reported under."""
        return self.kernel.name

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions it sets; with any, it can only be part of a flow."""
        return tuple(argument for argument in self.arguments if isinstance(argument, Condition))

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """Memory it touches."""
        return tuple(
            Operand(argument, parameter.writes)
            for parameter, argument in zip(self.kernel.parameters, self.arguments, strict=True)
            if isinstance(argument, DeviceArray)
        )


class Execution(Protocol):
    """An engine at one set of shapes, bound to fixed memory. Made by an engine set of the device's kind."""

    @property
    def name(self) -> str:
        """The graph's name."""
        ...

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Memory it is bound to at the moment: another tuple once it is bound to other memory."""
        ...


@dataclass(frozen=True, eq=False)
class Enqueue:
    """Run an engine."""

    execution: Execution

    @property
    def name(self) -> str:
        """What a fault is reported under."""
        return self.execution.name

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Memory it touches, as the engine is bound now."""
        return self.execution.operands


@dataclass(frozen=True, eq=False)
class Copy:
    """Copy ``source`` to ``target``, both on the device or one of them pinned; as many bytes each."""

    target: DeviceArray
    source: DeviceArray

    def __post_init__(self) -> None:
        if self.target.nbytes != self.source.nbytes:
            raise TypeError(f"{self.source} and {self.target} differ in size, so one cannot be copied")

    @property
    def name(self) -> str:
        """What a fault is reported under."""
        return "copy"

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """Memory it touches."""
        return Operand(self.source, writes=False), Operand(self.target, writes=True)


@dataclass(frozen=True, eq=False)
class Fill:
    """Set every byte of ``target`` to ``value``."""

    target: DeviceArray
    value: int = 0

    @property
    def name(self) -> str:
        """What a fault is reported under."""
        return "fill"

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """Memory it touches."""
        return (Operand(self.target, writes=True),)


Call = Launch | Enqueue | Copy | Fill
Program = tuple[Call, ...]
Signature = tuple[tuple[str, tuple[Operand, ...]], ...]


def signature(program: Program) -> Signature:
    """What must not change between capturing a program and replaying it: the memory of every call.

    Comparing two of them costs next to nothing while no engine is bound anew: they hold the same tuples.
    """
    return tuple((call.name, call.operands) for call in program)


def bound_operands(
    inputs: Mapping[str, DeviceArray], outputs: Mapping[str, DeviceArray]
) -> tuple[Operand, ...]:
    """What an engine bound to ``inputs`` and ``outputs`` touches."""
    reads = [Operand(array, writes=False) for array in inputs.values()]
    return (*reads, *(Operand(array, writes=True) for array in outputs.values()))
