from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vvs.config import GenerationConfig
from vvs.errors import SettingsError, VvsError
from vvs.modes import configure
from vvs.runtime.images import (
    CELL,
    LABEL,
    LABEL_COLUMN,
    MARGIN,
    PngMetadata,
    contact_sheet,
    file_name,
    read_metadata,
    save_png,
)

PIXELS = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)


def metadata() -> PngMetadata:
    config = configure("vvs", "oak", temperature=0.7).describe()
    return PngMetadata("ein rotes Kleid für 王", 7, "vvs", config, "demo", "0" * 64)


def test_png_carries_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    save_png(path, PIXELS, metadata())
    assert read_metadata(path) == metadata()
    assert GenerationConfig.parse(read_metadata(path).config).describe() == metadata().config
    np.testing.assert_array_equal(np.asarray(Image.open(path)), PIXELS)


def test_a_png_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Image.Image, file: Path, **options: object) -> None:
        Path(file).write_bytes(b"half a picture")
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_png(tmp_path / "a.png", PIXELS, metadata())
    assert list(tmp_path.iterdir()) == []


def test_other_files_have_no_settings(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("hello")
    Image.new("RGB", (2, 2)).save(tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        with pytest.raises(VvsError, match="is not a PNG that vvs has written"):
            read_metadata(tmp_path / name)


def test_names() -> None:
    assert file_name(3, "A red dress, please!", "vvs", 9) == "0003-a-red-dress-please-vvs-seed9.png"
    assert file_name(0, "../..", "ar", 1) == "0000-image-ar-seed1.png"


def test_contact_sheet_enlarges_and_labels() -> None:
    sheet = contact_sheet([[PIXELS, None], [None, PIXELS]], ["red", "a very long prompt " * 9], ["ar", "vvs"])
    assert sheet.size == (
        LABEL_COLUMN + 2 * (CELL + MARGIN) + MARGIN,
        LABEL + 2 * (CELL + MARGIN) + 2 * MARGIN,
    )
    corner = (LABEL_COLUMN, LABEL + MARGIN)
    cell = np.asarray(sheet)[corner[1] : corner[1] + CELL, corner[0] : corner[0] + CELL]
    np.testing.assert_array_equal(cell[::6, ::6], PIXELS)
    with pytest.raises(SettingsError, match="2 row labels and 1 column labels"):
        contact_sheet([[PIXELS]], ["a", "b"], ["ar"])
