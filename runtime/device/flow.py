"""Flow: what one graph runs, with loops and branches that kernels decide by the conditions they set.

Straight pieces are graphs that were captured before, so that nothing is ever captured into a loop or a
branch: a capture of that kind that fails may end the process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from vvs.runtime.device.calls import Condition, Launch


class Graph(Protocol):
    """Captured calls, or a flow of them, ready to be replayed as one."""

    @property
    def nodes(self) -> int:
        """Pieces of work it holds; 0 is the silent failure of a capture on the wrong device."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


@dataclass(frozen=True, eq=False)
class Embed:
    """Run the calls of a captured graph, which may be closed once the flow is assembled."""

    graph: Graph


@dataclass(frozen=True, eq=False)
class _Guarded:
    """One body behind a condition."""

    condition: Condition
    body: "Flow"

    @property
    def bodies(self) -> "tuple[Flow, ...]":
        """All bodies, as every node with a condition has them."""
        return (self.body,)


class If(_Guarded):
    """Run a body if the condition is not 0."""


class While(_Guarded):
    """Run a body as long as the condition is not 0; the body must set it again."""


@dataclass(frozen=True, eq=False)
class Switch:
    """Run the body whose number the condition is; none if there is no such body."""

    condition: Condition
    bodies: "tuple[Flow, ...]"


Part = Launch | Embed | If | While | Switch
Flow = tuple[Part, ...]
"""Parts that run in their order."""


def parts_of(flow: Flow) -> Iterator[Part]:
    """All parts of a flow, those in bodies included, in their order."""
    for part in flow:
        yield part
        if isinstance(part, If | While | Switch):
            for body in part.bodies:
                yield from parts_of(body)


def conditions_of(flow: Flow) -> tuple[Condition, ...]:
    """The conditions of a flow, in the order of the nodes that read them.

    Raises:
        TypeError: two nodes read the same one, no kernel sets one, or no node reads one.

    """
    parts = tuple(parts_of(flow))
    read = [part.condition for part in parts if isinstance(part, If | While | Switch)]
    written = {condition for part in parts if isinstance(part, Launch) for condition in part.conditions}
    if len(set(read)) != len(read):
        raise TypeError("two nodes of a flow read the same condition; give each its own")
    if set(read) != written:
        raise TypeError("a flow has a condition that no kernel sets, or that no node reads")
    return tuple(read)
