"""``vvs eval --images``: figures that are known whatever the network, and a sentence for what is missing.

Where the packages of the extra ``eval`` are there, networks of random weights stand in for the published
ones, in the layout that the packages load; elsewhere those tests skip.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from judged_folders import TINY_CLIP, make_folder, mend_torchvision, save_clip, save_inception
from typer.testing import CliRunner, Result

from vvs.benchmarks import folder_evaluation, instruments
from vvs.benchmarks.folder_evaluation import FolderSettings, evaluate_folders
from vvs.benchmarks.instruments import Clip, Inception
from vvs.benchmarks.optional import require
from vvs.benchmarks.picture_folder import PictureFile, list_pictures
from vvs.cli.app import app
from vvs.errors import SettingsError

PROMPTS = ["a red dress", "a blue shirt", "a green shoe", "a dog", "a cat", "two cars"]
Vvs = Callable[..., Result]


@pytest.fixture
def vvs() -> Vvs:
    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(app, ["eval", *map(str, arguments)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


class Brightness:
    """A stand-in for Inception: colours and contrast."""

    def __init__(self, weights: Path) -> None:
        assert weights.is_file()

    def features(self, files: Sequence[PictureFile], advance: Callable[[int], None]) -> np.ndarray:
        advance(len(files))
        pixels = [one.load().astype(np.float64) for one in files]
        return np.array([[*one.mean((0, 1)), one.std()] for one in pixels])


class Words:
    """A stand-in for CLIP: shorter captions fit better, and some not at all."""

    def __init__(self, weights: Path, model: str | None = None) -> None:
        assert weights.exists()

    def cosines(self, files: Sequence[PictureFile], advance: Callable[[int], None]) -> np.ndarray:
        return np.array([(10 - len(one.caption or "")) / 10 for one in files])


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_evaluation, "Inception", Brightness)
    monkeypatch.setattr(folder_evaluation, "Clip", Words)


@pytest.mark.usefixtures("stand_ins")
def test_folders_side_by_side(vvs: Vvs, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pth"
    weights.write_bytes(b"")
    real = make_folder(tmp_path / "real", 8, seed=1)
    same = make_folder(tmp_path / "same", 8, seed=1, prompts=["car"] * 8)
    other = make_folder(tmp_path / "other", 6, seed=2, prompts=PROMPTS)
    out = tmp_path / "out"
    result = vvs(
        "--images", same, "--images", other, "--reference", real, "--inception", weights,
        "--clip", weights, "--clip-model", "any", "--hps", weights, "--resamples", 20, "-o", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    data = json.loads((out / "eval.json").read_text())
    assert data["schema"] == 1
    assert data["not_measured"] == {}
    first, second = data["folders"]
    assert first["fid"]["value"] == pytest.approx(0, abs=1e-6)
    assert (first["precision"], first["recall"]) == (1, 1)
    assert second["fid"]["value"] > 10
    assert second["fid"]["low"] < second["fid"]["value"] < second["fid"]["high"]
    assert first["clip_score"] == first["hps_v2"] == {"value": 70, "low": 70, "high": 70}
    # Of a CLIP score, not of HPSv2, negative cosines count as 0.
    assert second["clip_score"]["value"] > second["hps_v2"]["value"]
    assert len(data["weights"]["hps"]["sha256"]) == 64
    text = (out / "eval.md").read_text()
    assert "| same | 8 | 0.00 (" in text
    assert "6 and 8 pictures: FIDs of different numbers of pictures cannot be compared" in text
    assert "8 reference pictures" in result.stdout


@pytest.mark.usefixtures("stand_ins")
def test_what_is_missing_is_said_and_is_an_error_where_it_was_asked_for(vvs: Vvs, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pth"
    weights.write_bytes(b"")
    folder, out = make_folder(tmp_path / "drawn", 5, prompts=PROMPTS), tmp_path / "out"
    done = vvs("--images", folder, "--hps", weights, "-o", out)
    assert done.exit_code == 0, done.stderr
    assert set(json.loads((out / "eval.json").read_text())["not_measured"]) == {
        "fid",
        "precision-recall",
        "clip",
    }
    assert "not measured: fid and precision-recall: a reference is needed" in done.stdout
    assert "say with --clip where they lie" in done.stdout
    only = vvs("--images", folder, "--hps", weights, "--metric", "hps", "-o", out)
    assert "not measured" not in only.stdout
    assert json.loads((out / "eval.json").read_text())["not_measured"] == {}
    asked = vvs(
        "--images", folder, "--hps", weights, "--metric", "hps", "--metric", "clip", "-o", tmp_path / "n"
    )
    assert asked.exit_code == 2
    assert "the weights of a CLIP model are needed" in asked.stderr
    nothing = vvs("--images", folder, "-o", tmp_path / "n")
    assert nothing.exit_code == 2
    assert "nothing can be measured: not measured: fid and precision-recall" in nothing.stderr
    assert not (tmp_path / "n").exists()


@pytest.mark.usefixtures("stand_ins")
def test_bad_input_is_a_sentence_and_writes_nothing(vvs: Vvs, tmp_path: Path) -> None:
    weights, out = tmp_path / "weights.pth", tmp_path / "out"
    weights.write_bytes(b"")
    folder = make_folder(tmp_path / "drawn", 5)
    few = make_folder(tmp_path / "few", 3)
    broken = make_folder(tmp_path / "broken", 5)
    (broken / "002.png").write_bytes(b"no picture")
    empty = tmp_path / "empty"
    empty.mkdir()
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\n# none\ntwo\n")
    inception = ("--inception", weights)
    cases = [
        (("--images", tmp_path / "nowhere"), "there is no folder of pictures at"),
        (("--images", empty), "holds no pictures"),
        (("--images", folder, "--reference", few, *inception), "holds 3 pictures, but FID"),
        (("--images", broken, "--reference", folder, *inception), "002.png cannot be read"),
        (("--images", folder, *inception), "give a folder of real pictures with --reference"),
        (("--images", folder, "--hps", weights), "000.png has no caption"),
        (("--images", folder, "--hps", weights, "--prompts", prompts), "2 prompts are given for the 5"),
        (("--images", folder, "--metric", "beauty"), "unknown metric 'beauty'; there is fid"),
        (("--images", folder, "--resamples", "-1"), "resamples is -1"),
        (("some-bundle", "--images", folder), "are both given"),
    ]
    for arguments, sentence in cases:
        result = vvs(*arguments, "-o", out)
        assert result.exit_code == 2, arguments
        assert sentence in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()


def test_a_package_that_is_missing_or_broken_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(SettingsError, match=r"FID needs torch_fidelity.*pip install 'vvs-toolkit\[eval\]'"):
        Inception(tmp_path)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(SettingsError, match="a CLIP model needs open_clip"):
        Clip(tmp_path)
    (tmp_path / "unfit.py").write_text("raise RuntimeError('operator x::y does not exist')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SettingsError, match="torch and torchvision must be builds that belong together"):
        require("unfit", "FID", "eval")


def test_inception_reads_the_layout_of_torch_fidelity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend_torchvision()
    pytest.importorskip("torch_fidelity", reason="the extra eval is not installed")
    from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
    from torch_fidelity.metric_prc import calculate_precision_recall_full

    from vvs.benchmarks.frechet import FrechetReference
    from vvs.benchmarks.neighbourhoods import precision_recall

    weights = save_inception(tmp_path / "inception.pth", monkeypatch)
    folder = make_folder(tmp_path / "drawn", 4)
    files = list_pictures(folder)
    seen: list[int] = []
    features = Inception(weights).features(files, seen.append)
    assert features.shape == (4, 2048)
    assert sum(seen) == 4
    assert np.ptp(features, axis=0).max() > 0
    with pytest.raises(SettingsError, match="there is no file of InceptionV3's weights at"):
        Inception(tmp_path / "nowhere.pth")
    torch.save({"some": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(SettingsError, match=r"other\.pth does not hold weights of InceptionV3"):
        Inception(tmp_path / "other.pth")
    # Our figures are the package's own.
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(40, 8)), rng.normal(size=(30, 8)) + 0.3
    of_package = [fid_features_to_statistics(torch.from_numpy(one)) for one in (a, b)]
    fid = fid_statistics_to_metric(*of_package, verbose=False)["frechet_inception_distance"]
    assert FrechetReference(b).distance(a) == pytest.approx(fid)
    shares = calculate_precision_recall_full(torch.from_numpy(a), torch.from_numpy(b))
    assert precision_recall(a, b) == pytest.approx(shares)


def test_clip_and_hps_read_the_layouts_of_open_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mend_torchvision()
    open_clip = pytest.importorskip("open_clip", reason="the extra eval is not installed")
    from safetensors.torch import load_file

    folder = save_clip(tmp_path / "clip")
    files = list_pictures(make_folder(tmp_path / "drawn", 6, prompts=PROMPTS))
    cosines = Clip(folder).cosines(files, lambda n: None)
    assert cosines.shape == (6,)
    assert np.abs(cosines).max() <= 1
    # What a picture scores does not depend on its neighbours or their order.
    backwards = Clip(folder).cosines(files[::-1], lambda n: None)
    assert backwards[::-1] == pytest.approx(cosines, abs=1e-5)
    assert len(set(cosines.round(6))) > 1
    # HPSv2's file: the state of a known model under state_dict.
    config = tmp_path / "tiny-hps.json"
    config.write_text(json.dumps(TINY_CLIP))
    open_clip.add_model_config(config)
    monkeypatch.setattr(folder_evaluation, "HPS_MODEL", "tiny-hps")
    state = load_file(folder / "open_clip_model.safetensors")
    torch.save({"epoch": 1, "state_dict": state}, tmp_path / "hps.pt")
    done = evaluate_folders(FolderSettings((tmp_path / "drawn",), clip=folder, hps=tmp_path / "hps.pt"))
    (one,) = done.folders
    assert one.hps is not None
    assert one.clip is not None
    # The file has no preprocessing of its own, so it is CLIP's usual one, which differs a little.
    assert one.hps.value == pytest.approx(100 * cosines.mean(), abs=2)
    for path, model, sentence in (
        (tmp_path / "nowhere", None, "there are no weights of a CLIP model"),
        (tmp_path / "drawn", None, "has no open_clip_config.json"),
        (tmp_path / "hps.pt", None, "say with --clip-model"),
        (tmp_path / "hps.pt", "ViT-Z", "knows no model 'ViT-Z'"),
        (tmp_path / "drawn" / "000.png", "tiny-hps", "does not hold weights of open_clip's model tiny-hps"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            Clip(path, model)
    assert instruments.HPS_MODEL in open_clip.list_models()
