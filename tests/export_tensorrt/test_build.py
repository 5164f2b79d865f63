"""Engines built for real, with no GPU: TensorRT for RTX builds ahead of time."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from vvs.engine_record import EngineRecord
from vvs.errors import ExportError, SettingsError
from vvs.export.tensorrt.builder import EngineOutcome, build_engines
from vvs.export.tensorrt.flags import BuildFlags
from vvs.export.tensorrt.graph_source import read_graph
from vvs.export.tensorrt.identity import contract_of
from vvs.export.tensorrt.profiles import RequestRange
from vvs.export.tensorrt.progress import Phases
from vvs.export.tensorrt.settings import BuildSettings
from vvs.export.tensorrt.timing_cache import cache_path, keep_cache, use_cache
from vvs.manifest import WEIGHTS_FILE
from vvs.runtime.bundle import Bundle
from vvs.runtime.engine_file import built_engines, engine_file, read_record, record_file, survey
from vvs.runtime.tensorrt_log import make_logger
from vvs.runtime.tensorrt_package import TensorRT

GRAPH = "encode_prompt"
REQUESTS = RequestRange(1, 1, 2)


def settings(arch: str = "sm_89", **more: object) -> BuildSettings:
    return BuildSettings("tensorrt-rtx", (arch,), (GRAPH,), REQUESTS, **more)  # type: ignore[arg-type]


def rebuilt(bundle: Bundle, wanted: BuildSettings) -> tuple[EngineOutcome, str]:
    out = io.StringIO()
    (outcome,) = build_engines(bundle, wanted, Console(file=out, width=1000))
    return outcome, out.getvalue()


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_builds_every_graph_and_two_architectures(built: object) -> None:
    bundle: Bundle = built.bundle  # type: ignore[attr-defined]
    names = {(graph, arch) for graph, arch, _ in built_engines(bundle.path)}
    assert names == {(g, "sm_89") for g in bundle.manifest.graphs} | {(GRAPH, "sm_120"), ("target", "sm_120")}
    for outcome in built.outcomes:  # type: ignore[attr-defined]
        record = read_record(outcome.path)
        assert not outcome.skipped
        assert outcome.bytes == outcome.path.stat().st_size == record.bytes
        assert record.contract == contract_of(bundle.manifest, record.identity.graph)
    assert [s.problem for s in survey(bundle)] == [""] * 6
    assert not leftovers(bundle.path)


def test_an_engine_of_one_architecture_is_not_that_of_another(built: object) -> None:
    folder = built.bundle.path  # type: ignore[attr-defined]
    plans = {engine_file(folder, "target", arch).read_bytes() for arch in ("sm_89", "sm_120")}
    assert len(plans) == 2


def test_what_is_up_to_date_is_left_alone(own: Bundle) -> None:
    before = engine_file(own.path, GRAPH, "sm_89").stat().st_mtime_ns
    outcome, out = rebuilt(own, settings())
    assert outcome.skipped
    assert "encode_prompt.sm_89.engine is up to date, nothing to do" in out
    assert engine_file(own.path, GRAPH, "sm_89").stat().st_mtime_ns == before


def test_what_is_not_up_to_date_is_built_again_and_says_why(own: Bundle) -> None:
    outcome, out = rebuilt(own, settings(flags=BuildFlags(builder_optimization_level=1), layer_info=True))
    assert not outcome.skipped
    assert "its flag builder-optimization-level is 3, but 1 is needed" in out
    assert "Memory on the GPU at the greatest shapes" in out
    layers = json.loads(outcome.path.with_suffix(".layers.json").read_text())
    assert layers["source"] == "parsed network"
    assert len(layers["layers"]) > 5
    assert "--builder-optimization-level 1" in read_record(outcome.path).command

    outcome.path.write_bytes(b"half")
    outcome, _ = rebuilt(own, settings(flags=BuildFlags(builder_optimization_level=1)))
    assert outcome.reason == "damaged or without its record"
    assert not outcome.path.with_suffix(".layers.json").exists(), "it described the engine before"


def test_an_interrupted_build_leaves_nothing(own: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    path = engine_file(own.path, GRAPH, "sm_86")
    step = Phases.step

    def interrupted(self: Phases, name: str, index: int) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return step(self, name, index)

    monkeypatch.setattr(Phases, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rebuilt(own, settings("sm_86"))
    assert not path.exists()
    assert not record_file(path).exists()
    assert not leftovers(own.path)


def test_a_failed_write_leaves_what_was_there(own: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    path = engine_file(own.path, GRAPH, "sm_89")
    before = path.read_bytes()

    def full(_: Path) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vvs.export.tensorrt.builder.sha256_of", full)
    with pytest.raises(OSError, match="No space left"):
        rebuilt(own, settings(force=True))
    assert path.read_bytes() == before
    assert not leftovers(own.path)


def test_an_operator_that_tensorrt_lacks_is_named(own: Bundle) -> None:
    import onnx_ir as ir

    x = ir.val("token_ids", ir.DataType.FLOAT, ir.Shape((1, 4)))
    node = ir.node("Frobnicate", [x], domain="odd", name="the_odd_one")
    node.outputs[0].name = "y"
    node.outputs[0].dtype, node.outputs[0].shape = ir.DataType.FLOAT, ir.Shape((1, 4))
    graph = ir.Graph([x], node.outputs, nodes=[node], name="odd", opset_imports={"": 20, "odd": 1})
    ir.save(ir.Model(graph, ir_version=10), own.path / f"{GRAPH}.onnx")
    with pytest.raises(ExportError) as error:
        rebuilt(own, settings(force=True))
    assert "has the operator Frobnicate (node 'the_odd_one')" in str(error.value)
    assert "run the bundle with --backend onnxruntime" in str(error.value)


def test_a_file_that_is_no_graph_is_refused(own: Bundle) -> None:
    (own.path / f"{GRAPH}.onnx").write_bytes(b"\xff" * 40)
    with pytest.raises(ExportError, match="cannot be read as ONNX"):
        rebuilt(own, settings(force=True))


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (BuildFlags(version_compatible=True), "--version-compatible is given, but TensorRT for RTX"),
        (BuildFlags(hardware_compatibility_level="ampere+"), "name every architecture with --arch"),
        (BuildFlags(refit=True), "only where there is a GPU driver"),
        (BuildFlags(strip_weights=True), "only where there is a GPU driver"),
    ],
)
def test_flags_that_the_package_lacks_are_refused_first(
    own: Bundle, flags: BuildFlags, sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence):
        rebuilt(own, settings("sm_86", flags=flags))


def test_weight_streaming_and_workspace_are_built_in(own: Bundle) -> None:
    flags = BuildFlags(allow_weight_streaming=True, workspace=1 << 28, profiling_verbosity="detailed")
    outcome, out = rebuilt(own, settings(flags=flags))
    assert "engines that stream weights allocate while they run" in out
    assert read_record(outcome.path).identity.flags["allow-weight-streaming"] is True


def test_a_timing_cache_is_ignored_where_nothing_is_timed(own: Bundle, tmp_path: Path) -> None:
    _, out = rebuilt(own, settings(timing_cache=tmp_path / "trt.cache"))
    assert "times no kernels when it builds, so --timing-cache-file is ignored" in out
    assert not list(tmp_path.glob("trt*"))


def test_a_bad_timing_cache_only_warns(rtx: TensorRT, tmp_path: Path) -> None:
    file = cache_path(tmp_path / "trt.cache", rtx, "sm_89")
    assert file.name == f"trt.tensorrt_rtx-{rtx.version}.sm_89.cache"
    logger, messages = make_logger(rtx)
    config = rtx.api.Builder(logger).create_builder_config()
    said: list[str] = []
    use_cache(file, config, messages, said.append)
    assert said == [], "there is none yet"
    file.write_bytes(b"garbage" * 50)
    use_cache(file, config, messages, said.append)
    assert len(said) == 1
    assert said[0].startswith(f"the timing cache {file} is of no use (")
    keep_cache(file, config, said.append)
    assert len(said) == 1
    assert not file.read_bytes().startswith(b"garbage"), "what can be used takes its place"
    (tmp_path / "taken").write_bytes(b"")
    keep_cache(tmp_path / "taken" / "cache", config, said.append)
    assert "cannot be written" in said[-1]


def test_the_straightened_tree_drafts_the_same_to_the_bit(tiny_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx_ir")
    import onnxruntime

    bundle = Bundle.open(tiny_bundle, verify=False)
    spec = bundle.manifest.graphs["draft_tree.tiny"]
    source = read_graph(bundle.file(spec.file))
    assert b"nucleus" in source.model
    (tmp_path / "straight.onnx").write_bytes(source.model)
    (tmp_path / WEIGHTS_FILE).write_bytes(bundle.file(WEIGHTS_FILE).read_bytes())
    plain, straight = (
        onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        for file in (bundle.file(spec.file), tmp_path / "straight.onnx")
    )
    rng = np.random.default_rng(0)
    for trial in range(12):
        feed = random_inputs(bundle, rng, requests=1 + trial % 3, whole=trial % 3 == 0)
        for a, b in zip(plain.run(None, feed), straight.run(None, feed), strict=True):
            np.testing.assert_array_equal(a, b)


def random_inputs(
    bundle: Bundle, rng: np.random.Generator, *, requests: int, whole: bool
) -> dict[str, np.ndarray]:
    """Valid inputs of the draft tree; ``whole`` leaves every nucleus out."""
    geometry, rows = bundle.manifest.geometry, 4
    g = geometry.guidance_rows
    sizes = {"R": requests, "B": g * requests, "A": rows}
    feed = {}
    for spec in bundle.manifest.graphs["draft_tree.tiny"].inputs:
        shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
        match spec.name:
            case "tokens" | "root":
                value = rng.integers(0, geometry.vocabulary, shape)
            case "positions":
                value = rng.integers(geometry.prompt_length, geometry.capacity, shape)
            case "count":
                value = np.tile(rng.integers(1, rows + 1, requests), g)
            case "past_length":
                value = np.tile(rng.integers(geometry.prompt_length, 20, requests), g)
            case "top_p":
                value = np.ones(shape) if whole else rng.uniform(0.3, 1.1, shape)
            case "temperature" | "cfg_scale":
                value = rng.uniform(0.5, 3, shape)
            case _:
                value = rng.standard_normal(shape)
        feed[spec.name] = np.asarray(value).astype(spec.dtype)
    return feed


def test_no_branch_is_left_in_any_graph(tiny_bundle: Path) -> None:
    ir = pytest.importorskip("onnx_ir")
    import onnx

    bundle = Bundle.open(tiny_bundle, verify=False)
    for spec in bundle.manifest.graphs.values():
        model = ir.from_proto(onnx.load_from_string(read_graph(bundle.file(spec.file)).model))
        assert "If" not in {node.op_type for node in model.graph}


def test_records_can_be_read_without_a_builder(built: object) -> None:
    path = engine_file(built.bundle.path, "target", "sm_89")  # type: ignore[attr-defined]
    record = read_record(path)
    assert isinstance(record, EngineRecord)
    assert record.identity.flags["builder-optimization-level"] == 3
