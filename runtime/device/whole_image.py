"""WholeImage: the decoding of a batch's images as one graph, a loop around the steps with their branches.

It is put together from the graphs of single programs as :class:`ProgramRunner` captured and compared them.
Which of them run, the kernels of ``routing.cu`` say; what every step came to is kept on the device and read
at the end.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from vvs.errors import BackendError
from vvs.runtime.device.calls import Condition, Program
from vvs.runtime.device.flow import Embed, Flow, Graph, If, Part, Switch, While
from vvs.runtime.device.graphs import Key, ProgramRunner
from vvs.runtime.device.interface import Device, DeviceFaultError
from vvs.runtime.device.programs import Programs
from vvs.runtime.device.step_trees import TreeNames

_logger = logging.getLogger("vvs.device")


class WholeImageUse:
    """Whether images are decoded as one graph: what was asked for, until it turns out not to work.

    Belongs to a loop, so that its one warning is given once.

    Args:
        device: what runs them.
        wanted: whether it was asked for.

    """

    def __init__(self, device: Device, *, wanted: bool) -> None:
        self._device = device
        self._wanted = wanted
        self._asked = False

    @property
    def usable(self) -> bool:
        """Whether to try it; the first answer may take seconds."""
        if self._wanted and not self._asked:
            self._asked = True
            reason = self._device.why_no_flows()
            if reason:
                self.give_up(reason)
        return self._wanted

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Give up where what is done inside fails."""
        try:
            yield
        except DeviceFaultError:
            raise
        except BackendError as error:
            self.give_up(error)

    def give_up(self, reason: object) -> None:
        """Decode step by step from now on, and say so once."""
        if self._wanted:
            self._wanted = False
            _logger.warning(
                "%s cannot decode a whole image as one graph (%s); images are decoded step by step, "
                "which draws the same",
                self._device.name,
                reason,
            )


class BatchKind(NamedTuple):
    """What a batch's graph depends on, of one shape."""

    first: TreeNames
    """Trees that the first step drafts."""
    trees: TreeNames
    """Trees that later steps may draft."""
    plain: bool
    """Whether a request decodes without drafting."""
    similarity: bool
    """Whether a request decides by the likeness of paths."""
    skips: bool
    """Whether a request may skip."""


@dataclass(frozen=True)
class _Assembled:
    graph: Graph
    made_of: tuple[Graph, ...]


class WholeImage:
    """Graphs of whole images. Belongs to one session.

    Args:
        device: what runs them.
        programs: of the session.
        runner: what captures them.

    """

    def __init__(self, device: Device, programs: Programs, runner: ProgramRunner) -> None:
        self._device = device
        self._programs = programs
        self._runner = runner
        self._assembled: dict[BatchKind, _Assembled] = {}

    def is_captured(self, kind: BatchKind) -> bool:
        """Whether all programs are captured as they are bound now."""
        return all(self._runner.graph_of(*named) is not None for named in self._named(kind))

    def capture(self, kind: BatchKind) -> None:
        """Run every program once, whatever was decided; what the requests come to is of no use afterwards."""
        for key, program in self._named(kind):
            if self._runner.graph_of(key, program) is None:
                self._runner.run(key, program)

    def graph(self, kind: BatchKind) -> Graph:
        """The graph of a batch whose programs are captured, kept for the next one.

        Raises:
            BackendError: a program cannot be captured, or the device refuses the graph.

        """
        graphs = {key: self._runner.graph_of(key, program) for key, program in self._named(kind)}
        captured = {key: graph for key, graph in graphs.items() if graph is not None}
        if len(captured) < len(graphs):
            raise BackendError("a part of a step cannot be captured")
        held, made_of = self._assembled.get(kind), tuple(captured.values())
        if held is not None and held.made_of == made_of:
            return held.graph
        if held is not None:
            del self._assembled[kind]
            held.graph.close()
        graph = self._device.assemble(self._flow(kind, captured))
        self._assembled[kind] = _Assembled(graph, made_of)
        return graph

    def close(self) -> None:
        """Give all graphs back."""
        assembled, self._assembled = self._assembled, {}
        for each in assembled.values():
            each.graph.close()

    def _named(self, kind: BatchKind) -> Iterator[tuple[Key, Program]]:
        """The programs of a batch with their keys, in an order in which they can run."""
        programs = self._programs
        for tree in kind.first:
            yield ("draft", tree, True), programs.draft(tree, first=True)
        yield self._decide(kind), programs.decide(plain=kind.plain, similarity=kind.similarity)
        yield ("verify", False), programs.verify(chain=False)
        for tree in kind.trees:
            yield ("draft", tree, False), programs.draft(tree, first=False)
        if kind.skips:
            yield "skip", programs.skip
            yield ("verify", True), programs.verify(chain=True)

    def _decide(self, kind: BatchKind) -> Key:
        return "decide", kind.plain, kind.similarity

    def _flow(self, kind: BatchKind, graphs: Mapping[Key, Graph]) -> Flow:
        """The first step, in which nobody skips, then a loop around all others."""
        running = Condition()
        decide, end = Embed(graphs[self._decide(kind)]), self._programs.end_step(running)
        first = [Embed(graphs["draft", tree, True]) for tree in kind.first]
        verify = Embed(graphs["verify", False])
        body = (*self._drafts(kind, graphs), decide, *self._decided(kind, graphs), end)
        return (*first, decide, verify, end, While(running, body))

    def _drafts(self, kind: BatchKind, graphs: Mapping[Key, Graph]) -> Iterator[Part]:
        """Draft every tree that a request wants: a single one always."""
        for tree in kind.trees:
            draft = Embed(graphs["draft", tree, False])
            if len(kind.trees) == 1:
                yield draft
                continue
            drafts = Condition()
            yield self._programs.route_draft(tree, drafts)
            yield If(drafts, (draft,))

    def _decided(self, kind: BatchKind, graphs: Mapping[Key, Graph]) -> Iterator[Part]:
        """Skip and verify, each if a request does."""
        alone = Embed(graphs["verify", False])
        if not kind.skips:
            yield alone
            return
        skips, verifies = Condition(), Condition()
        yield self._programs.route_step(skips, verifies)
        yield If(skips, (Embed(graphs["skip"]),))
        yield Switch(verifies, ((alone,), (Embed(graphs["verify", True]),)))
