"""Transposes of weights disappear from graphs, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from vvs.export.parity import open_graph
from vvs.export.transposes import fold_transposes


def test_transposed_weights(tmp_path: Path) -> None:
    """One weight used turned and as it is, one turned twice, and an input that is turned."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((3, 3)).astype(np.float32) for name in ("both", "turned")}
    x = ir.val("x", dtype=ir.DataType.FLOAT, shape=(3, 3))
    weights = {name: ir.val(name, const_value=ir.tensor(array, name=name)) for name, array in arrays.items()}
    tape = ir.tape.Tape()
    y = x
    for name in ("both", "turned", "turned"):
        y = tape.op("MatMul", [y, tape.op("Transpose", [weights[name]], attributes={"perm": [1, 0]})])
    y = tape.op("MatMul", [tape.op("Transpose", [y]), weights["both"]], output=ir.val("y"))
    y.dtype, y.shape = ir.DataType.FLOAT, ir.Shape((3, 3))
    graph = ir.Graph(
        [x], [y], nodes=tape.nodes, initializers=list(weights.values()), opset_imports={"": 20}, name="g"
    )
    model = ir.Model(graph, ir_version=10)
    ir.save(model, tmp_path / "before.onnx")
    fold_transposes(model)
    ir.save(model, tmp_path / "after.onnx")
    assert [node.op_type for node in graph].count("Transpose") == 1
    assert sorted(graph.initializers) == ["both", "both.transposed.1.0", "turned.transposed.1.0"]
    value = rng.standard_normal((3, 3)).astype(np.float32)
    before, after = (
        open_graph(tmp_path / f"{name}.onnx").run(None, {"x": value})[0] for name in ("before", "after")
    )
    np.testing.assert_allclose(after, before, rtol=1e-6)
