from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vvs.errors import BackendError, BundleError
from vvs.manifest import CODEBOOK_LATENTS, MANIFEST_FILE, TOKEN_EMBEDDINGS
from vvs.runtime.backends import BACKENDS, Backend, open_engine, register
from vvs.runtime.bundle import Bundle


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = bundle / MANIFEST_FILE
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def test_opens_a_whole_bundle(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    assert bundle.manifest.name == "tiny"
    assert bundle.codebook.vocabulary == 96
    assert bundle.token_embeddings.shape == (96, 32)
    assert isinstance(bundle.token_embeddings, np.memmap)
    assert bundle.tokenizer.encode("Red dress").ids == [3, 6]


def test_what_is_not_a_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no bundle at .*nowhere"):
        Bundle.open(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"is not a bundle: it has no manifest\.json"):
        Bundle.open(tmp_path)
    (tmp_path / MANIFEST_FILE).write_text("{ not json")
    with pytest.raises(BundleError, match="cannot be read as JSON"):
        Bundle.open(tmp_path)
    (tmp_path / MANIFEST_FILE).write_text("[]")
    with pytest.raises(BundleError, match="holds a list"):
        Bundle.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m.update(schema=99), "schema version 99, but this version reads 1"),
        (lambda m: m.update(surprise=1), "'surprise' that this version does not know"),
        (lambda m: m.pop("precision"), "lacks the field 'precision'"),
        (lambda m: m["geometry"].update(grid="six"), r"geometry\.grid is 'six'"),
        (lambda m: m["graphs"].pop("target"), "lacks the graph 'target'"),
        (lambda m: m["files"].pop(TOKEN_EMBEDDINGS), "lists no file 'token_embeddings.npy'"),
        (lambda m: m["files"].update({"../x": {"bytes": 1, "sha256": ""}}), "lies outside the bundle"),
        (lambda m: m["files"].update(gone={"bytes": 1, "sha256": ""}), "the file 'gone' is missing"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    broken_bundle: Path, change: Callable[[dict[str, Any]], Any], sentence: str
) -> None:
    edit_manifest(broken_bundle, change)
    with pytest.raises(BundleError, match=sentence):
        Bundle.open(broken_bundle)


def test_changed_files_are_named(broken_bundle: Path) -> None:
    file = broken_bundle / "target.onnx"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleError, match=r"target\.onnx has been changed or damaged"):
        Bundle.open(broken_bundle)
    Bundle.open(broken_bundle, verify=False)
    file.write_bytes(data[:-1])
    with pytest.raises(BundleError, match=rf"target\.onnx has {len(data) - 1} bytes"):
        Bundle.open(broken_bundle, verify=False)


def test_arrays_of_another_size_are_refused(broken_bundle: Path) -> None:
    np.save(broken_bundle / CODEBOOK_LATENTS, np.zeros((96, 4), np.float32))
    size = (broken_bundle / CODEBOOK_LATENTS).stat().st_size
    edit_manifest(broken_bundle, lambda m: m["files"][CODEBOOK_LATENTS].update(bytes=size))
    with pytest.raises(BundleError, match=r"shape \(96, 4\).*makes it \(96, 8\)"):
        _ = Bundle.open(broken_bundle, verify=False).codebook


def test_graphs_must_be_what_the_manifest_says(broken_bundle: Path) -> None:
    def widen(manifest: dict[str, Any]) -> None:
        manifest["graphs"]["target"]["inputs"][0]["shape"] = ["B", "T", 999]

    edit_manifest(broken_bundle, widen)
    with pytest.raises(BundleError, match=r"the input 'embeds' of the graph 'target' .*999"):
        open_engine(Bundle.open(broken_bundle))


def test_a_damaged_graph_is_a_sentence(broken_bundle: Path) -> None:
    file = broken_bundle / "target.onnx"
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(BackendError, match=r"cannot open .*target\.onnx"):
        open_engine(Bundle.open(broken_bundle, verify=False))


def test_unknown_and_missing_backends_say_what_there_is(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(tiny_bundle)
    with pytest.raises(BackendError, match="unknown backend 'abacus'; there is onnxruntime"):
        open_engine(bundle, "abacus")
    monkeypatch.setattr("vvs.runtime.backends.BACKENDS", dict(BACKENDS))
    register(Backend("beads", "", "no.such:thing", ("no_such_package",), "pip install beads"))
    with pytest.raises(
        BackendError, match=r"needs no_such_package.*`pip install beads`.*one of: onnxruntime"
    ):
        open_engine(bundle, "beads")
