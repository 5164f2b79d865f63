"""Writing bundles: nothing twice, nothing by halves, nothing that differs from the modules."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import torch
from rich.console import Console

from vvs.errors import ExportError, SettingsError
from vvs.export import bundle as bundle_module
from vvs.export.bundle import export_bundle, read_manifest, source_hash
from vvs.export.compact import compact_target
from vvs.export.graphs import EncodePromptGraph, Graph, TargetGraph, named
from vvs.export.onnx_export import WEIGHTS_FILE, GraphWriter, trace
from vvs.export.parity import ParityReport, compare, failures, open_graph, require_parity
from vvs.export.precision import FP32, Numerics, in_precision
from vvs.manifest import CODEBOOK_LATENTS, CODEBOOK_NEAREST, TOKEN_EMBEDDINGS, Manifest, Origin

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet


def manifest_of(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    assert manifest is not None
    return manifest


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces building, which is slow, by something else."""

    def replace(build: Any) -> None:
        monkeypatch.setattr(bundle_module, "_build", build)

    return replace


def test_manifest_describes_the_graphs(tiny_bundle: Path, tiny_models: ModelSet) -> None:
    manifest = manifest_of(tiny_bundle)
    assert manifest.geometry == tiny_models.geometry
    assert manifest.conditioning.kind == "words"
    assert manifest.trees == tiny_models.trees
    for spec in manifest.graphs.values():
        session = open_graph(tiny_bundle / spec.file)
        assert [(i.name, tuple(i.shape)) for i in session.get_inputs()] == [
            (t.name, t.shape) for t in spec.inputs
        ]
        assert [(o.name, tuple(o.shape)) for o in session.get_outputs()] == [
            (t.name, t.shape) for t in spec.outputs
        ]
        assert spec.parity
        assert not failures(spec.parity)


def test_arrays(tiny_bundle: Path, tiny_models: ModelSet) -> None:
    V = tiny_models.geometry.vocabulary
    np.testing.assert_array_equal(np.load(tiny_bundle / CODEBOOK_LATENTS), tiny_models.codebook)
    nearest = np.load(tiny_bundle / CODEBOOK_NEAREST)
    assert nearest.shape == (V, V - 1)
    assert nearest.dtype == np.int32
    embeddings = tiny_models.target.model.embed_tokens.weight.detach().numpy()
    np.testing.assert_array_equal(np.load(tiny_bundle / TOKEN_EMBEDDINGS), embeddings)


def test_graphs_hold_no_paths(tiny_bundle: Path) -> None:
    """The tracer notes source files and stacks; a bundle is for others."""
    for path in tiny_bundle.glob("*.onnx"):
        assert b".py" not in path.read_bytes()


def test_weights_are_stored_once(tiny_bundle: Path, tiny_models: ModelSet) -> None:
    """The head is in two graphs, yet the shared file is no larger than the models."""
    head = tiny_models.target.lm_head.weight.detach().numpy().T.tobytes()
    assert (tiny_bundle / WEIGHTS_FILE).read_bytes().count(head) == 1
    for path in tiny_bundle.glob("*.onnx"):
        inline = sum(len(t.raw_data) for t in onnx.load(path, load_external_data=False).graph.initializer)
        assert inline < 50_000


def test_nothing_is_exported_twice(tiny_bundle: Path, tiny_models: ModelSet, instead: Any) -> None:
    instead(lambda *_: pytest.fail("built again"))
    shown = io.StringIO()
    outcome = export_bundle(tiny_models, tiny_bundle, console=Console(file=shown, width=200))
    assert outcome.skipped
    assert set(outcome.parity) == set(manifest_of(tiny_bundle).graphs)
    assert "is up to date, nothing to do" in shown.getvalue()


def test_an_origin_is_noted_and_rebuilds_nothing(
    broken_bundle: Path, tiny_models: ModelSet, instead: Any
) -> None:
    instead(lambda *_: pytest.fail("built again"))
    before = manifest_of(broken_bundle)
    origin = Origin("../tiny.toml", "../weights", "0" * 64)
    assert export_bundle(tiny_models, broken_bundle, origin=origin).skipped
    assert manifest_of(broken_bundle) == dataclasses.replace(before, origin=origin)


def test_everything_counts_as_a_source(tiny_models: ModelSet) -> None:
    base = source_hash(tiny_models, FP32)
    weights = copy.deepcopy(tiny_models.target)
    with torch.no_grad():
        weights.lm_head.weight[0, 0] += 1
    changed = [
        source_hash(tiny_models, Numerics("fp16")),
        source_hash(tiny_models, Numerics("fp16", ("1",))),
        source_hash(dataclasses.replace(tiny_models, target=weights), FP32),
        source_hash(dataclasses.replace(tiny_models, name="other"), FP32),
        source_hash(dataclasses.replace(tiny_models, defaults={"cfg_scale": 9.0}), FP32),
        source_hash(dataclasses.replace(tiny_models, codebook=tiny_models.codebook + 1), FP32),
    ]
    assert len({base, *changed}) == 7
    assert base == source_hash(tiny_models, FP32)


@pytest.mark.parametrize("damage", ["remove", "change", "force"])
def test_what_makes_an_export_run_again(
    broken_bundle: Path, tiny_models: ModelSet, instead: Any, damage: str
) -> None:
    if damage == "remove":
        (broken_bundle / "target.onnx").unlink()
    elif damage == "change":
        (broken_bundle / "target.onnx").write_bytes(b"x")

    def build(_models: Any, _precision: str, folder: Path, *_: Any) -> dict[str, Any]:
        (folder / "manifest.json").write_text("{}")
        return {}

    instead(build)
    assert not export_bundle(tiny_models, broken_bundle, force=damage == "force").skipped
    assert list(contents(broken_bundle)) == ["manifest.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk full"), ExportError("no parity")])
def test_an_interrupted_export_leaves_what_was_there(
    broken_bundle: Path, tiny_models: ModelSet, instead: Any, error: BaseException
) -> None:
    def build(_models: Any, _precision: str, folder: Path, *_: Any) -> None:
        (folder / "half.onnx").write_bytes(b"x")
        raise error

    instead(build)
    before = contents(broken_bundle)
    for place in (broken_bundle, broken_bundle.parent / "new"):
        with pytest.raises(type(error)):
            export_bundle(tiny_models, place, force=True)
    assert contents(broken_bundle) == before
    assert [path.name for path in broken_bundle.parent.iterdir()] == [broken_bundle.name]


def test_other_folders_are_not_replaced(tmp_path: Path, tiny_models: ModelSet) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ExportError, match="is a folder that holds no bundle"):
        export_bundle(tiny_models, tmp_path)
    with pytest.raises(ExportError, match="is a file, but a bundle is a folder"):
        export_bundle(tiny_models, tmp_path / "letter.txt")


def test_graphs_that_differ_are_refused(tiny_bundle: Path, tiny_models: ModelSet) -> None:
    """A target whose weights have moved a little no longer matches its graph."""
    moved = copy.deepcopy(tiny_models.target)
    with torch.no_grad():
        moved.model.layers[1].mlp.down_proj.weight += 0.01
    reports = compare(tiny_bundle / "target.onnx", TargetGraph(moved), "fp32")
    assert {r.output for r in failures(reports)} >= {"logits", "features"}
    assert not failures([r for r in reports if r.output == "new_k_0"])
    with pytest.raises(ExportError, match=r"graph target: output \w+ differs .* at most 0.0001 is allowed"):
        require_parity("target", reports)


def test_not_a_number_is_no_parity() -> None:
    report = ParityReport("logits", float("nan"), float("nan"), 1e-4)
    assert failures([report]) == [report]


@pytest.mark.parametrize(("requests", "rows"), [(1, 1), (1, 6), (4, 1), (5, 17)])
def test_any_batch_and_any_rows(tiny_bundle: Path, tiny_models: ModelSet, requests: int, rows: int) -> None:
    """One graph serves every shape; values alone, since key rows are kept in another order."""
    graph = TargetGraph(compact_target(tiny_models.target))
    inputs = graph.sample(requests, rows, torch.Generator().manual_seed(7))
    with torch.no_grad():
        expected = named(graph.outputs, graph(*inputs))
    actual = open_graph(tiny_bundle / "target.onnx").run(None, named(graph.inputs, inputs))
    for values, got in zip(expected.values(), actual, strict=True):
        np.testing.assert_allclose(got, values, atol=1e-4, rtol=1e-4)


def exported(graph: Graph, plain: Graph, folder: Path, precision: str) -> list[ParityReport]:
    GraphWriter(folder).write(trace(graph, 2), "graph.onnx")
    return list(compare(folder / "graph.onnx", plain, precision))


def test_half_precision(tmp_path: Path, tiny_models: ModelSet) -> None:
    target = in_precision(tiny_models.target, torch.float16)
    assert target.lm_head.weight.dtype == torch.float16
    assert target.rotation.dtype == torch.float32
    assert tiny_models.target.lm_head.weight.dtype == torch.float32
    reports = exported(TargetGraph(compact_target(target)), TargetGraph(target), tmp_path, "fp16")
    assert not failures(reports)
    assert max(r.relative for r in reports) > 1e-5  # it is half precision


@pytest.mark.parametrize("kind", ["class", "caption", "unguided"])
def test_other_conditioning(tmp_path: Path, kind: str) -> None:
    from vvs.export.llamagen import CaptionConditioning, ClassConditioning, Target, TargetConfig
    from vvs.geometry import Geometry

    prompt_length = 1 if kind == "class" else 3
    g = 1 if kind == "unguided" else 2
    geometry = Geometry(4, 64, 8, prompt_length, 1, 2, 8, 16, g, 8)
    conditioning = ClassConditioning(10) if kind == "class" else CaptionConditioning(12)
    target = Target(TargetConfig(geometry, conditioning, ffn=32)).eval()
    for number, graph in enumerate((EncodePromptGraph, TargetGraph)):
        folder = tmp_path / str(number)
        folder.mkdir()
        GraphWriter(folder).write(trace(graph(compact_target(target)), g), "graph.onnx")
        assert not failures(compare(folder / "graph.onnx", graph(target), "fp32"))


def test_model_sets_that_do_not_fit(tiny_models: ModelSet) -> None:
    def refused(sentence: str, **changes: Any) -> None:
        with pytest.raises(SettingsError, match=sentence):
            dataclasses.replace(tiny_models, **changes)

    refused("the default tree is 'oak', but the trees are: tiny", default_tree="oak")
    refused("the codebook is float32 .3, 8., but it must be float32", codebook=np.zeros((3, 8), np.float32))
    refused("needs a tokenizer, but none was given", tokenizer=None)
    refused("max_requests is 0", max_requests=0)


def test_manifest_reads_back(tiny_bundle: Path) -> None:
    data = json.loads((tiny_bundle / "manifest.json").read_text())
    assert Manifest.from_dict(data) == manifest_of(tiny_bundle)
