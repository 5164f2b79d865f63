"""Folders of pictures and their captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from judged_folders import make_folder
from PIL import Image

from vvs.benchmarks.picture_folder import captions_of, list_pictures
from vvs.errors import SettingsError


def test_captions_of_every_kind(tmp_path: Path) -> None:
    generated = make_folder(tmp_path / "generated", 3, prompts=["a", "b", "c"])
    (generated / "contact-sheet.png").write_bytes((generated / "000.png").read_bytes())
    assert captions_of(list_pictures(generated)) == ["a", "b", "c"]
    # A file beside a picture goes before what is in it, a file of prompts before all.
    (generated / "001.txt").write_text("other\n")
    assert captions_of(list_pictures(generated)) == ["a", "other", "c"]
    assert captions_of(list_pictures(generated, ["x", "y", "z"])) == ["x", "y", "z"]
    listed = make_folder(tmp_path / "listed", 2)
    lines = '{"file_name": "001.png", "text": "second"}\n{"file_name": "000.png", "prompt": "first"}\n'
    (listed / "metadata.jsonl").write_text(lines)
    files = list_pictures(listed)
    assert [(one.path.name, one.caption) for one in files] == [("001.png", "second"), ("000.png", "first")]


def test_jpeg_and_grey_pictures_are_read_as_rgb(tmp_path: Path) -> None:
    Image.new("L", (8, 6), 100).save(tmp_path / "a.JPG")
    (tmp_path / "deeper").mkdir()
    Image.new("RGBA", (4, 4)).save(tmp_path / "deeper" / "b.png")
    first, second = list_pictures(tmp_path)
    assert (first.load().shape, second.load().shape) == ((6, 8, 3), (4, 4, 3))
    assert first.load().dtype == np.uint8
    with pytest.raises(SettingsError, match=r"a\.JPG has no caption: give a file of them with --prompts"):
        captions_of([first])


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no folder of pictures at"):
        list_pictures(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="holds no pictures"):
        list_pictures(tmp_path)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (one,) = list_pictures(tmp_path)
    with pytest.raises(SettingsError, match=r"broken\.png cannot be read"):
        one.load()
    with pytest.raises(SettingsError, match="2 prompts are given for the 1 pictures"):
        list_pictures(tmp_path, ["a", "b"])
