"""``vvs refit``: what is refused without a GPU, and, on a fake, what is asked of TensorRT where one is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from vvs.cli.app import app
from vvs.engine_record import EngineRecord
from vvs.errors import EngineError, ExportError, SettingsError
from vvs.export.tensorrt import refitter
from vvs.export.tensorrt.graph_source import GraphSource
from vvs.export.tensorrt.refitter import refit_engines
from vvs.manifest import FileSpec, Manifest
from vvs.runtime.bundle import Bundle
from vvs.runtime.cuda_driver import Driver, Gpu
from vvs.runtime.engine_file import engine_file, onnx_hash, read_record, record_file, survey
from vvs.runtime.tensorrt_loader import load_engine
from vvs.runtime.tensorrt_package import TensorRT

NEW_PLAN = b"refitted"


class FakeTensorRT:
    """What refitting asks of the API, written down."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.takes = True
        self.missing: list[str] = []
        self.SerializationFlag = SimpleNamespace(INCLUDE_REFIT="include-refit")

    def Refitter(self, engine: Any, logger: Any) -> Any:  # noqa: N802 - TensorRT's name
        return SimpleNamespace(get_missing_weights=lambda: self.missing, refit_cuda_engine=lambda: True)

    def OnnxParserRefitter(self, refitter: Any, logger: Any) -> Any:  # noqa: N802 - TensorRT's name
        def refit(model: bytes, path: str) -> bool:
            self.asked.append((model, Path(path).name))
            return self.takes

        error = SimpleNamespace(desc=lambda: "the shape of w differs")
        return SimpleNamespace(refit_from_bytes=refit, num_errors=1, get_error=lambda i: error)

    def create_serialization_config(self) -> Any:
        return SimpleNamespace(set_flag=self.asked.append)

    def serialize_with_config(self, config: Any) -> bytes:
        return NEW_PLAN


@pytest.fixture
def tensorrt(monkeypatch: pytest.MonkeyPatch, fake_package: TensorRT) -> FakeTensorRT:
    api = FakeTensorRT()
    package = dataclasses.replace(fake_package, api=api)
    source = GraphSource(Path("target.onnx"), b"model", 1)
    monkeypatch.setattr(refitter, "load_tensorrt", lambda backend: package)
    monkeypatch.setattr(refitter, "find_driver", lambda: Driver((13, 0), (Gpu("NVIDIA Something", "sm_89"),)))
    monkeypatch.setattr(refitter, "make_logger", lambda package: (None, None))
    monkeypatch.setattr(refitter, "open_plan", lambda *arguments: (api, None))
    monkeypatch.setattr(refitter, "read_graph", lambda file: source)
    return api


def placed(folder: Path, record: EngineRecord, **flags: bool) -> Path:
    """An engine file and its record, as a build with these flags leaves them."""
    path = engine_file(folder, record.identity.graph, "sm_89")
    path.write_bytes(b"old")
    changed = {**record.identity.flags, **{name.replace("_", "-"): on for name, on in flags.items()}}
    identity = dataclasses.replace(record.identity, flags=changed)
    sha256 = hashlib.sha256(b"old").hexdigest()
    made = dataclasses.replace(record, identity=identity, digest=identity.digest, bytes=3, sha256=sha256)
    record_file(path).write_text(json.dumps(made.to_dict()))
    return path


def other_weights(manifest: Manifest) -> Manifest:
    files = {**manifest.files, "weights.bin": FileSpec(1, "9" * 64)}
    return dataclasses.replace(manifest, files=files, source="6" * 64)


def test_new_weights_make_a_stale_engine_fit(
    tensorrt: FakeTensorRT, manifest: Manifest, records: dict[str, EngineRecord], tmp_path: Path
) -> None:
    path = placed(tmp_path, records["target"], refit=True)
    bundle = Bundle(tmp_path, other_weights(manifest))
    assert "its ONNX hash is" in survey(bundle)[0].problem
    (outcome,) = refit_engines(bundle, "tensorrt-rtx")
    assert not outcome.skipped
    assert tensorrt.asked == [(b"model", "target.onnx"), "include-refit"]
    assert path.read_bytes() == NEW_PLAN
    record = read_record(path)
    assert record.identity.onnx == onnx_hash(bundle.manifest, "target")
    assert record.contract.build == "6" * 64
    assert survey(bundle)[0].problem == ""
    (again,) = refit_engines(bundle, "tensorrt-rtx")
    assert again.skipped


def test_a_stripped_engine_gets_its_weights(
    tensorrt: FakeTensorRT,
    manifest: Manifest,
    records: dict[str, EngineRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = placed(tmp_path, records["target"], strip_weights=True)
    bundle = Bundle(tmp_path, manifest)
    package = refitter.load_tensorrt("tensorrt-rtx")
    monkeypatch.setattr("vvs.runtime.tensorrt_loader.load_tensorrt", lambda backend: package)
    with pytest.raises(EngineError, match=r"built without its weights; put them in with `vvs refit"):
        load_engine(bundle, "tensorrt-rtx", "target")
    refit_engines(bundle, "tensorrt-rtx", ["target"])
    assert read_record(path).identity.flags["strip-weights"] is False
    with pytest.raises(EngineError, match="was not built to be refitted"):
        refit_engines(Bundle(tmp_path, other_weights(manifest)), "tensorrt-rtx")


def test_what_cannot_be_refitted_is_a_sentence(
    tensorrt: FakeTensorRT, manifest: Manifest, records: dict[str, EngineRecord], tmp_path: Path
) -> None:
    bundle = Bundle(tmp_path, other_weights(manifest))
    with pytest.raises(EngineError, match=r"no such engine for sm_89; build it with `vvs build .* --refit`"):
        refit_engines(bundle, "tensorrt-rtx")
    path = placed(tmp_path, records["target"])
    with pytest.raises(
        EngineError, match=r"was not built to be refitted; rebuild it with `vvs build .* --ref"
    ):
        refit_engines(bundle, "tensorrt-rtx")
    with pytest.raises(SettingsError, match="--graph is 'x', but the bundle has encode_prompt"):
        refit_engines(bundle, "tensorrt-rtx", ["x"])
    older = dataclasses.replace(records["target"].identity, version="1.0")
    placed(tmp_path, dataclasses.replace(records["target"], identity=older), refit=True)
    with pytest.raises(EngineError, match=r"is foreign: its builder version is tensorrt_rtx 1\.0"):
        refit_engines(bundle, "tensorrt-rtx")
    placed(tmp_path, records["target"], refit=True)
    tensorrt.missing = ["w1", "w2"]
    with pytest.raises(ExportError, match="2 weights are missing, the first is 'w1'"):
        refit_engines(bundle, "tensorrt-rtx")
    tensorrt.takes = False
    with pytest.raises(ExportError, match=r"refuses the weights of .*: the shape of w differs; if the model"):
        refit_engines(bundle, "tensorrt-rtx")
    assert path.read_bytes() == b"old"


def test_the_command_says_what_it_needs() -> None:
    shown = " ".join(CliRunner().invoke(app, ["refit", "--help"]).output.split())
    assert "cannot be done ahead of time" in shown
