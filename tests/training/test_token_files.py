"""``.npy`` files of tokens: their shapes, and where their prompts come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from trainings import QUICK, Train, sentence

from vvs.errors import SettingsError
from vvs.export.training.prompted_files import PromptedFile, find_prompted_files
from vvs.export.training.token_files import read_token_files


def saved(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


@pytest.mark.parametrize("shape", [(36,), (6, 6), (1, 36), (4, 36), (1, 4, 36), (4, 6, 6)])
def test_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)
    rows = array.size // 36
    files = [PromptedFile(saved(tmp_path / "a.npy", array), "red"), PromptedFile(tmp_path / "a.npy", "blue")]
    tokens, prompts = read_token_files(files, 6)
    assert tokens.dtype == np.int64
    np.testing.assert_array_equal(tokens, np.concatenate(2 * [array.reshape(-1, 36)]))
    assert prompts == ["red"] * rows + ["blue"] * rows


def test_a_prompt_for_each_picture_or_one_for_all(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npy", np.zeros((2, 36), np.int64))
    assert read_token_files([PromptedFile(path, "red\nblue")], 6).prompts == ["red", "blue"]
    one = saved(tmp_path / "b.npy", np.zeros(36, np.int64))
    assert read_token_files([PromptedFile(one, "red\nblue")], 6).prompts == ["red\nblue"]
    with pytest.raises(SettingsError, match="holds 2 pictures, but its prompt has 3 lines"):
        read_token_files([PromptedFile(path, "red\nblue\ngreen")], 6)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((2, 35), np.int64), r"shape \[2, 35\], but it must end in 36 tokens, or in 6 x 6"),
        (np.zeros((), np.int64), r"shape \[\], but it must end in"),
        (np.zeros(36), "holds float64, but tokens are integers"),
        (np.array([{}]), "cannot be read"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, array: np.ndarray, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read_token_files([PromptedFile(saved(tmp_path / "a.npy", array), "red")], 6)


def test_a_folder_of_token_files_is_trained_on(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "codes" / "red dress"
    folder.mkdir(parents=True)
    for i in range(3):
        saved(folder / f"{i}.npy", np.full((2, 36), i))
    found = find_prompted_files(tmp_path / "codes", {".npy"}, "token files")
    assert {file.prompt for file in found} == {"red dress"}
    result = train(tmp_path / "codes", "-o", tmp_path / "mine", *QUICK)
    assert result.exit_code == 0, result.stderr
    assert not (tmp_path / "mine" / "tokens.npz").exists()
    Image.new("RGB", (12, 12)).save(folder / "3.png")
    result = train(tmp_path / "codes", "-o", tmp_path / "other", *QUICK)
    assert result.exit_code == 2
    assert "holds both pictures and token files (.npy); keep one kind" in sentence(result)


def test_one_token_file_has_its_prompts_beside_it(train: Train, tokens: Path, tmp_path: Path) -> None:
    result = train(tokens, "-o", tmp_path / "mine", *QUICK)
    assert result.exit_code == 0, result.stderr
    tokens.with_suffix(".txt").unlink()
    result = train(tokens, "-o", tmp_path / "other", *QUICK)
    assert result.exit_code == 2
    assert "has no prompts: put them into tokens.txt beside it" in sentence(result)
    np.save(tokens, np.full((8, 36), 96))
    tokens.with_suffix(".txt").write_text("a red dress")
    result = train(tokens, "-o", tmp_path / "other", *QUICK)
    assert result.exit_code == 2
    assert "lie in 96..96, but the target's vocabulary is 0..95" in sentence(result)
    assert not (tmp_path / "other").exists()
