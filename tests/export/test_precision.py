"""Every precision: what is in the graphs, that they agree with PyTorch, and what stays in fp32."""

from __future__ import annotations

import copy
import dataclasses
import io
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto
from rich.console import Console

from vvs.errors import BackendError, ExportError
from vvs.export.bundle import _pairs, export_bundle, read_manifest
from vvs.export.compact import half_split_order
from vvs.export.graphs import TargetGraph, named
from vvs.export.int8 import LARGEST, round_channels, with_int8_products
from vvs.export.onnx_export import GraphWriter, trace
from vvs.export.overflow import keep_overflowing, overflows
from vvs.export.parity import ParityReport, compare, failures, require_parity
from vvs.export.precision import Numerics
from vvs.export.rounding import in_dtypes, with_rounded_products
from vvs.precision import PRECISIONS
from vvs.runtime.bundle import Bundle
from vvs.runtime.onnxruntime_engine import session_options
from vvs.runtime.pipeline import Pipeline
from vvs.runtime.prompts import Prompted, encode_each

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vvs.engine import Conditioning
    from vvs.export.model_set import ModelSet

RUNNABLE = [name for name, precision in PRECISIONS.items() if precision.compute != "bf16"]
FLOATS = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def prompts_of(models: ModelSet) -> dict[str, Conditioning]:
    prompted = Prompted(models.conditioning, models.geometry.prompt_length, models.read_tokenizer)
    return encode_each(prompted, ["a red dress", "blue shoe"])


@pytest.fixture(params=PRECISIONS)
def precise_bundle(request: pytest.FixtureRequest, tiny_bundle_in: Callable[[str], Path]) -> Path:
    return tiny_bundle_in(request.param)


def test_every_precision_agrees_with_pytorch(precise_bundle: Path) -> None:
    manifest = read_manifest(precise_bundle)
    assert manifest is not None
    precision = PRECISIONS[manifest.precision]
    for spec in manifest.graphs.values():
        assert spec.parity
        assert not failures(spec.parity)
    target = onnx.load(precise_bundle / "target.onnx", load_external_data=False).graph
    kinds = {w.name: w.data_type for w in target.initializer}
    weights = [
        kinds[node.input[1]] for node in target.node if node.op_type == "MatMul" and node.input[1] in kinds
    ]
    int8 = [node for node in target.node if node.op_type == "DequantizeLinear"]
    if precision.int8_weights:
        products = 4 * manifest.geometry.layers + 1
        assert len(int8) == products
        assert not weights
        for node in int8:
            values, scales = node.input
            assert (kinds[values], kinds[scales]) == (TensorProto.INT8, FLOATS[precision.compute])
            assert [a.i for a in node.attribute if a.name == "axis"] == [1]
    else:
        assert not int8
        assert set(weights) == {FLOATS[precision.compute]}


def test_norms_softmax_and_rotations_compute_in_fp32(precise_bundle: Path) -> None:
    model = onnx.shape_inference.infer_shapes(
        onnx.load(precise_bundle / "target.onnx", load_external_data=False)
    )
    known = (*model.graph.value_info, *model.graph.input)
    kinds = {v.name: v.type.tensor_type.elem_type for v in known}
    kinds |= {w.name: w.data_type for w in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("Softmax", "ReduceMean", "Sqrt", "Pow"):
            assert kinds[node.input[0]] == TensorProto.FLOAT, node.name
    manifest = read_manifest(precise_bundle)
    assert manifest is not None
    tables = [w for w in model.graph.initializer if w.dims[1:] == [manifest.geometry.head_dim]]
    assert [w.data_type for w in tables] == [TensorProto.FLOAT] * 2, "cosines and sines"


def test_bundles_draw_or_say_who_does(precise_bundle: Path) -> None:
    manifest = read_manifest(precise_bundle)
    assert manifest is not None
    if manifest.precision in RUNNABLE:
        (image,) = Pipeline.from_bundle(precise_bundle, threads=1).generate("a red dress").images
        assert np.isfinite(image.pixels).all()
        return
    with pytest.raises(
        BackendError, match=r"ONNX Runtime cannot compute in bf16 on a CPU; .* --backend cuda"
    ):
        Pipeline.from_bundle(precise_bundle)
    embeddings = Bundle.open(precise_bundle).token_embeddings
    assert (embeddings.dtype, embeddings.ndim) == (np.uint16, 2)


def test_int8_rounds_by_channel() -> None:
    weight = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1], [10], [0], [1e-3], [3]]
    )
    values, scales = round_channels(weight)
    assert values.dtype == torch.int8
    assert values.abs().amax(1).tolist() == [LARGEST, LARGEST, 0, LARGEST, LARGEST]
    assert scales[2] == 1
    assert ((values * scales.unsqueeze(1) - weight).abs() <= 0.5001 * scales.unsqueeze(1)).all()


def test_int8_products_share_what_is_not_rounded(tiny_models: ModelSet) -> None:
    rounded = with_int8_products(tiny_models.target, lambda name: name == "lm_head")
    assert rounded.model is not tiny_models.target.model
    assert rounded.model.embed_tokens.weight is tiny_models.target.model.embed_tokens.weight
    assert isinstance(tiny_models.target.lm_head, torch.nn.Linear)
    features = torch.randn(1, 3, 32)
    exact, near = tiny_models.target.logits(features), rounded.logits(features)
    assert 0 < (exact - near).abs().max() < 0.02 * exact.abs().max()


def test_activations_are_not_rounded_to_int8(
    tiny_models: ModelSet, tiny_bundle_in: Callable[[str], Path]
) -> None:
    """ONNX Runtime may turn an int8 weight and its product into one of integers; in ours it must not."""
    rounded = with_int8_products(tiny_models.target, Numerics("int8").rounds)
    graph = TargetGraph(rounded)
    inputs = graph.sample(2, 5, torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = graph(*inputs)[0].numpy()
    feeds = named(graph.inputs, inputs)
    order = half_split_order(tiny_models.geometry.head_dim).numpy()
    feeds |= {name: rows[..., order] for name, rows in feeds.items() if name.startswith("past_k")}
    options = session_options(threads=1)
    session = onnxruntime.InferenceSession(tiny_bundle_in("int8") / "target.onnx", options)
    (logits,) = session.run(["logits"], feeds)
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()


def stretch(mlp: torch.nn.Module) -> None:
    """Let an FFN leave float16's range; scaled back, it disturbs nobody else."""
    with torch.no_grad():
        mlp.up_proj.weight *= 1e5
        mlp.down_proj.weight *= 1e-5


def overflowing(models: ModelSet, layer: int) -> ModelSet:
    """The models, with a layer that overflows in float16."""
    target = copy.deepcopy(models.target)
    stretch(target.model.layers[layer].mlp)
    return dataclasses.replace(models, target=target)


@pytest.mark.parametrize(
    ("numerics", "found"),
    [
        (Numerics("fp16"), {"1"}),
        (Numerics("int8-fp16"), {"1"}),
        (Numerics("fp16", ("1",)), set()),
        (Numerics("bf16"), set()),
        (Numerics("fp32"), set()),
    ],
)
def test_overflows_are_found(tiny_models: ModelSet, numerics: Numerics, found: set[str]) -> None:
    models = overflowing(tiny_models, 1)
    prompts = prompts_of(models)
    seen = overflows(with_rounded_products(in_dtypes(models, numerics), numerics), prompts)
    assert {overflow.part for overflow in seen} == found
    assert {overflow.prompt for overflow in seen} == (set(prompts) if found else set())


def test_overflows_of_every_part_are_named(tiny_models: ModelSet) -> None:
    head, drafter = copy.deepcopy(tiny_models.target), copy.deepcopy(tiny_models.drafter)
    stretch(drafter.layers[0].mlp)
    with torch.no_grad():
        head.lm_head.weight *= 1e5
    prompts = prompts_of(tiny_models)
    for name, changed in (("head", {"target": head}), ("drafter", {"drafter": drafter})):
        models = dataclasses.replace(tiny_models, **changed)
        for kept, found in (((), {name}), ((name,), set())):
            numerics = Numerics("fp16", kept)
            assert {o.part for o in overflows(in_dtypes(models, numerics), prompts)} == found


def test_auto_keeps_what_overflows_and_says_so(tiny_models: ModelSet) -> None:
    models, shown = overflowing(tiny_models, 0), io.StringIO()
    console = Console(file=shown, width=200)
    prompts = prompts_of(models)
    assert keep_overflowing(models, Numerics("fp16"), prompts, console) == Numerics("fp16")
    assert (
        "layer 0 is not finite in fp16 on the prompt 'a red dress'; --keep-fp32 0 keeps it"
        in shown.getvalue()
    )
    kept = keep_overflowing(models, Numerics("fp16", auto=True), prompts, console)
    assert kept.kept == ("0",)
    assert "layer 0 is not finite in fp16 on the prompt 'blue shoe'; it is kept in fp32" in shown.getvalue()
    assert keep_overflowing(models, Numerics("fp16"), {}, console) == Numerics("fp16")
    assert "no prompts are known" in shown.getvalue()


@pytest.mark.parametrize("part", ["1", "head", "drafter"])
@pytest.mark.parametrize("name", ["fp16", "int8-fp16", "bf16"])
def test_kept_parts_agree_with_pytorch(tmp_path: Path, tiny_models: ModelSet, name: str, part: str) -> None:
    numerics = Numerics(name, (part,))
    pairs = {pair.traced.name: pair for pair in _pairs(tiny_models, numerics)}
    pair = pairs["draft_tree.tiny" if part == "drafter" else "target"]
    GraphWriter(tmp_path).write(trace(pair.traced, 2), "graph.onnx")
    assert not failures(compare(tmp_path / "graph.onnx", pair.plain, numerics.precision.compute))
    floats = {
        tensor.dtype for tensor in (*pair.traced.inputs, *pair.traced.outputs) if "float" in tensor.dtype
    }
    assert floats == {"float32", "bfloat16" if name == "bf16" else "float16"}


@pytest.mark.parametrize(
    ("name", "kept", "sentence"),
    [
        (
            "int4",
            [],
            "precision is 'int4', but it must be one of fp32, fp16, bf16, int8, int8-fp16, int8-bf16",
        ),
        ("fp16", ["tail"], "'tail' is to be kept in fp32, but what can be kept is numbers of target layers"),
        ("fp16", ["3-1"], "the layers 3-1 are to be kept in fp32, but 1 comes before 3"),
        ("fp16", ["0,"], "'' is to be kept in fp32"),
        ("fp16", ["99999"], "'99999' is to be kept in fp32"),
        ("fp16", ["0-2"], "layer 2 is to be kept in fp32, but the target's layers are 0..1"),
        ("fp16", ["text-encoder"], "text-encoder is to be kept in fp32, but this model has none"),
    ],
)
def test_what_cannot_be_kept(
    tmp_path: Path, tiny_models: ModelSet, name: str, kept: list[str], sentence: str
) -> None:
    with pytest.raises(ExportError) as error:
        export_bundle(tiny_models, tmp_path / "b", numerics=Numerics.parse(name, kept))
    assert str(error.value).startswith(sentence)
    assert not list(tmp_path.iterdir())


def test_parts_are_read() -> None:
    numerics = Numerics.parse("fp16", ["3,head", "5-7", "auto"])
    assert numerics == Numerics("fp16", ("3", "5", "6", "7", "head"), auto=True)
    assert numerics.dtype_of("model.layers.5.mlp.up_proj.weight") == torch.float32
    assert numerics.dtype_of("model.layers.4.mlp.up_proj.weight") == torch.float16
    assert numerics.dtype_of("fc.weight", "drafter") == torch.float16


def test_an_overflow_is_no_parity() -> None:
    report = ParityReport("logits", float("inf"), float("inf"), 1e-2)
    with pytest.raises(
        ExportError, match=r"output logits is not finite everywhere; keep what overflows in fp32"
    ):
        require_parity("target", [report])
