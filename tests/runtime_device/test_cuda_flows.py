"""How a flow is put together with cuda.core: on a double of it that has the methods which the package has."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from vvs.errors import BackendError
from vvs.runtime.device.array import DeviceArray
from vvs.runtime.device.calls import Condition, Launch
from vvs.runtime.device.cuda import CudaDevice, CudaGraph
from vvs.runtime.device.flow import Embed, If, Switch, While
from vvs.runtime.kernels.table import END_STEP, ROUTE_STEP

COUNTERS = DeviceArray(1 << 40, (1, 20), "int32")
HISTORY = DeviceArray(1 << 41, (1, 9, 3), "int32")


class Definition:
    """Records nodes: each is (what, arguments, the node before it)."""

    def __init__(self, conditions: list[int] | None = None) -> None:
        self.added: list[tuple[Any, ...]] = []
        self.conditions = [] if conditions is None else conditions

    def create_condition(self, default_value: int | None = None) -> SimpleNamespace:
        assert default_value == 0
        self.conditions.append(len(self.conditions) + 70)
        return SimpleNamespace(handle=self.conditions[-1])

    def nodes(self) -> set[int]:
        return set(range(len(self.added)))

    def instantiate(self) -> str:
        return "an executable graph"

    def __getattr__(self, name: str) -> Any:
        return getattr(Node(self, None), name)


class Node:
    """One node; what is added to it comes behind it."""

    def __init__(self, definition: Definition, number: int | None, bodies: int = 0) -> None:
        self.definition = definition
        self.number = number
        self.branches = tuple(Definition(definition.conditions) for _ in range(bodies))

    @property
    def body(self) -> Definition:
        return self.branches[0]

    then = body

    def _add(self, what: str, *arguments: Any, bodies: int = 0) -> Node:
        added = self.definition.added
        node = Node(self.definition, len(added), bodies)
        added.append((what, arguments, self.number, node.branches))
        return node

    def launch(self, config: Any, kernel: Any, *arguments: Any) -> Node:
        plain = [a.value if isinstance(a, ctypes._SimpleCData) else a for a in arguments]
        return self._add("launch", kernel, *plain)

    def embed(self, child: Any) -> Node:
        return self._add("embed", child)

    def if_then(self, condition: Any) -> Node:
        return self._add("if", condition.handle, bodies=1)

    def while_loop(self, condition: Any) -> Node:
        return self._add("while", condition.handle, bodies=1)

    def switch(self, condition: Any, count: int) -> Node:
        return self._add("switch", condition.handle, count, bodies=count)


@pytest.fixture
def device() -> CudaDevice:
    """A device that was never opened, on the double."""
    device = object.__new__(CudaDevice)
    device._core = SimpleNamespace(
        LaunchConfig=SimpleNamespace, graph=SimpleNamespace(GraphDefinition=Definition)
    )
    device._kernels = {kernel.name: kernel.name for kernel in (END_STEP, ROUTE_STEP)}
    return device


def captured(name: str) -> Embed:
    graph = CudaGraph(f"executable {name}", Definition())
    graph.definition.added.append((name,))
    return Embed(graph)


def test_a_flow_is_added_node_behind_node(device: CudaDevice) -> None:
    running, skips, verifies = Condition(), Condition(), Condition()
    skip, alone, chain = (captured(name) for name in ("skip", "alone", "chain"))
    end = Launch(END_STEP, (COUNTERS, HISTORY, running, 1, 9))
    route = Launch(ROUTE_STEP, (COUNTERS, skips, verifies, 1))
    body = (route, If(skips, (skip,)), Switch(verifies, ((alone,), (chain,))), end)
    made = device.assemble((end, While(running, body)))
    assert made.graph == "an executable graph"
    assert made.nodes == 2
    root = made.definition
    assert root.conditions == [70, 71, 72]  # all of them of the outermost graph
    first, (what, (handle,), before, (inner,)) = root.added
    assert first[:3] == ("launch", ("vvs_end_step", COUNTERS.address, HISTORY.address, 70, 1, 9), None)
    assert (what, handle, before) == ("while", 70, 0)
    assert [(node[0], node[2]) for node in inner.added] == [
        ("launch", None), ("if", 0), ("switch", 1), ("launch", 2)
    ]  # fmt: skip
    assert inner.added[0][1] == ("vvs_route_step", COUNTERS.address, 71, 72, 1)
    assert inner.added[1][1] == (71,)
    assert inner.added[2][1] == (72, 2)
    embedded = [branch.added[0][:2] for node in inner.added[1:3] for branch in node[3]]
    assert embedded == [("embed", (each.graph.definition,)) for each in (skip, alone, chain)]  # type: ignore[attr-defined]


def test_what_cuda_refuses_is_a_sentence(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(definition: Definition) -> str:
        raise RuntimeError("CUDA_ERROR_INVALID_VALUE: one or more arguments")

    monkeypatch.setattr(Definition, "instantiate", refuse)
    with pytest.raises(BackendError, match="CUDA failed while assembling a graph: CUDA_ERROR_INVALID_VALUE"):
        device.assemble((captured("skip"),))


def test_the_package_has_what_the_double_has() -> None:
    graph = pytest.importorskip("cuda.core").graph
    for name in ("create_condition", "nodes", "instantiate"):
        assert hasattr(graph.GraphDefinition, name)
    for owner in (graph.GraphDefinition, graph.GraphNode):
        for name in ("launch", "embed", "if_then", "while_loop", "switch"):
            assert hasattr(owner, name)
    for owner, name in (
        (graph.WhileNode, "body"), (graph.IfNode, "then"), (graph.SwitchNode, "branches"),
        (graph.GraphCondition, "handle"), (graph.GraphBuilder, "graph_definition"),
    ):  # fmt: skip
        assert hasattr(owner, name)
