"""Identity: every part that may differ has its sentence, and so has every way a pair may not fit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from vvs.engine_record import EngineRecord, Profile, ShapeRange
from vvs.errors import EngineError
from vvs.manifest import FileSpec, Manifest
from vvs.runtime.bundle import Bundle
from vvs.runtime.engine_file import (
    engine_file,
    find_record,
    onnx_hash,
    read_record,
    record_file,
    require_current,
    require_intact,
    require_pair,
    survey,
    wanted_here,
)
from vvs.tree_shape import TreeShape

Records = dict[str, EngineRecord]
REBUILD = "rebuild it with `vvs build there --backend tensorrt-rtx --arch sm_89`"


def smaller(profiles: tuple[Profile, ...]) -> tuple[Profile, ...]:
    shape = ShapeRange((1, 36), (1, 36), (2, 36))
    return (dataclasses.replace(profiles[0], shapes={"tokens": shape}),)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"onnx": "a" * 64}, "stale: its ONNX hash is {onnx}, but aaaaaaaaaaaa is needed"),
        (
            {"profiles": smaller},
            "stale: its profile whole of the input tokens is min 1x36 opt 1x36 max 4x36, "
            "but min 1x36 opt 1x36 max 2x36 is needed",
        ),
        ({"profiles": lambda _: ()}, "stale: its list of profiles is whole, but empty is needed"),
        (
            {"flags": lambda f: {**f, "builder-optimization-level": 5}},
            "stale: its flag builder-optimization-level is 3, but 5 is needed",
        ),
        ({"flags": lambda f: {**f, "refit": True}}, "stale: its flag refit is off, but on is needed"),
        (
            {"version": "1.8.0.1"},
            "foreign: its builder version is tensorrt_rtx 1.7.1.116, but tensorrt_rtx 1.8.0.1 is needed",
        ),
        (
            {"builder": "tensorrt"},
            "foreign: its builder version is tensorrt_rtx 1.7.1.116, but tensorrt 1.7.1.116 is needed",
        ),
        ({"arch": "sm_120"}, "foreign: its GPU architecture is sm_89, but sm_120 is needed"),
    ],
)
def test_every_part_that_differs_has_its_sentence(
    records: Records, part: dict[str, Any], sentence: str
) -> None:
    record = records["decode_image"]
    found = record.identity
    changes = {k: v(getattr(found, k)) if callable(v) else v for k, v in part.items()}
    wanted = dataclasses.replace(found, **changes)
    require_current(Path("e"), record, found)
    with pytest.raises(EngineError) as error:
        require_current(Path("e"), record, wanted)
    assert str(error.value) == f"e is {sentence.format(onnx=found.onnx[:12])}; {REBUILD}"
    assert wanted.digest != found.digest


@pytest.mark.parametrize("file", ["decode_image.onnx", "weights.bin"])
def test_graph_and_weights_are_part_of_the_onnx_hash(manifest: Manifest, records: Records, file: str) -> None:
    files = {**manifest.files, file: FileSpec(1, "f" * 64)}
    other = dataclasses.replace(manifest, files=files)
    assert onnx_hash(other, "decode_image") != onnx_hash(manifest, "decode_image")
    record = records["decode_image"]
    with pytest.raises(EngineError, match="stale: its ONNX hash is"):
        require_current(Path("e"), record, wanted_here(Bundle(Path("b"), other), record.identity))


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"vocabulary": 97}, "its vocabulary is 97, but 96 is needed"),
        ({"feature_width": 64}, "its feature width is 64, but 32 is needed"),
        ({"guidance_rows": 1}, "its number of guidance rows is 1, but 2 is needed"),
        ({"kv_layout": (4, 48, 8)}, "its KV layout is 4x48x8, but 2x48x16 is needed"),
        ({"kv_dtype": "float32"}, "its KV dtype is float32, but float16 is needed"),
        (
            {"trees": {"small": TreeShape(3, 2, 9)}},
            "its draft tree small is k3-d2-n9, but k3-d2-n8 is needed",
        ),
        ({"trees": {"big": TreeShape(3, 2, 9)}}, "draft tree big is k3-d2-n9, but one of small is needed"),
        ({"build": "6" * 64}, "its build id is 666666666666, but 555555555555 is needed"),
    ],
)
def test_target_and_drafter_are_checked_as_a_pair(
    records: Records, part: dict[str, Any], sentence: str
) -> None:
    target, drafter = records["target"], records["draft_tree.small"]
    require_pair(drafter, target)
    other = dataclasses.replace(drafter, contract=dataclasses.replace(drafter.contract, **part))
    with pytest.raises(EngineError) as error:
        require_pair(other, target)
    message = str(error.value)
    assert message.startswith("the engine of draft_tree.small does not fit that of target: ")
    assert sentence in message
    assert message.endswith("rebuild both with `vvs build there --backend tensorrt-rtx --arch sm_89`")


def write(folder: Path, record: EngineRecord, content: bytes = b"abc") -> Path:
    path = engine_file(folder, record.identity.graph, record.identity.arch)
    path.write_bytes(content)
    record_file(path).write_text(json.dumps(record.to_dict()))
    return path


def test_records_read_as_they_were_written(records: Records, tmp_path: Path) -> None:
    path = write(tmp_path, records["target"])
    assert (path.name, record_file(path).name) == ("target.sm_89.engine", "target.sm_89.json")
    assert read_record(path) == records["target"]


def test_says_what_is_wrong_with_a_record(records: Records, tmp_path: Path) -> None:
    path = write(tmp_path, records["target"])
    data = records["target"].to_dict()
    for change, sentence in (
        ({"schema": 9}, "schema version 9, but this version reads 1"),
        ({"digest": "e" * 64}, "has been changed: its digest is eeeeeeeeeeee, but what it lists makes"),
        ({"bytes": "3"}, "bytes is '3', but it must be of type int"),
        ({"more": 1}, "has a field 'more' that this version does not know"),
    ):
        record_file(path).write_text(json.dumps(data | change))
        with pytest.raises(EngineError, match=sentence):
            read_record(path)
    for text, sentence in (("{", "cannot be read as JSON"), ("[]", "holds a list")):
        record_file(path).write_text(text)
        with pytest.raises(EngineError, match=sentence):
            read_record(path)
    record_file(path).unlink()
    with pytest.raises(EngineError, match=r"has no record target\.sm_89\.json .*vvs build .* --arch sm_89"):
        read_record(path)


def test_a_damaged_engine_is_refused(records: Records, tmp_path: Path) -> None:
    record = records["target"]
    path = write(tmp_path, record, b"four")
    with pytest.raises(EngineError, match="has 4 bytes, but its record says 3; rebuild it with"):
        require_intact(path, record)
    path.write_bytes(b"xyz")
    require_intact(path, record, verify=False)
    with pytest.raises(EngineError, match=r"changed or damaged: its SHA-256 is .* says cccccccccccc"):
        require_intact(path, record)


def test_says_for_what_there_are_engines(manifest: Manifest, records: Records, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, manifest)
    with pytest.raises(EngineError, match="for sm_90: none is built; build it with"):
        find_record(bundle, "target", "sm_90", "tensorrt-rtx")
    write(tmp_path, records["target"])
    with pytest.raises(EngineError, match=r"for sm_90: it is built for sm_89 only; build it with `vvs build"):
        find_record(bundle, "target", "sm_90", "tensorrt-rtx")


def test_survey_sees_engines_without_a_gpu(manifest: Manifest, records: Records, tmp_path: Path) -> None:
    for record in records.values():
        write(tmp_path, record)
    states = survey(Bundle(tmp_path, manifest), verify=False)
    assert {(s.graph, s.arch, s.problem) for s in states} == {(g, "sm_89", "") for g in manifest.graphs}
    drafter = records["draft_tree.small"]
    contract = dataclasses.replace(drafter.contract, vocabulary=7)
    write(tmp_path, dataclasses.replace(drafter, contract=contract))
    path = engine_file(tmp_path, "target", "sm_89").rename(engine_file(tmp_path, "target", "sm_90"))
    record_file(engine_file(tmp_path, "target", "sm_89")).rename(record_file(path))
    problems = {s.graph: s.problem for s in survey(Bundle(tmp_path, manifest), verify=False)}
    assert "its GPU architecture is sm_89, but sm_90 is needed" in problems["target"]
    write(tmp_path, records["target"])
    problems = {s.path.name: s.problem for s in survey(Bundle(tmp_path, manifest), verify=False)}
    assert "its vocabulary is 7, but 96 is needed" in problems["draft_tree.small.sm_89.engine"]
