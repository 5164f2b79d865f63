"""The command line: what it writes, and that everything wrong is one sentence and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from vvs.cli.app import app
from vvs.manifest import MANIFEST_FILE
from vvs.runtime.images import read_metadata

Vvs = Callable[..., Result]


@pytest.fixture
def vvs() -> Vvs:
    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


def sentence(result: Result) -> str:
    """The one line on stderr."""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("vvs: ")
    return lines[0]


def test_generates_pictures_with_settings(vvs: Vvs, tiny_bundle: Path, tmp_path: Path) -> None:
    out, numbers = tmp_path / "out", tmp_path / "numbers.json"
    result = vvs(
        "generate", tiny_bundle, "a red dress", "--count", 2, "--seed", 5, "--policy", "uniform:3",
        "--temperature", 0.8, "-o", out, "--json", numbers, "--contact-sheet", "--threads", 1,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    names = sorted(path.name for path in out.iterdir())
    pictures = ["0000-a-red-dress-vvs-seed5.png", "0001-a-red-dress-vvs-seed6.png"]
    assert names == [*pictures, "contact-sheet.png"]
    metadata = read_metadata(out / pictures[1])
    assert (metadata.prompt, metadata.seed, metadata.mode, metadata.bundle) == (
        "a red dress",
        6,
        "vvs",
        "tiny",
    )
    assert metadata.config["temperature"] == 0.8
    assert metadata.config["skipping"] == "uniform:interval=3"
    data = json.loads(numbers.read_text())
    assert [image["seed"] for image in data["images"]] == [5, 6]
    assert data["images"][0]["statistics"]["image_tokens"] == 36
    assert "tokens per pass" in result.stdout
    # The same command again would replace them.
    again = vvs("generate", tiny_bundle, "a red dress", "--seed", 5, "-o", out)
    assert again.exit_code == 2
    assert "exists; choose another folder" in sentence(again)
    assert vvs("generate", tiny_bundle, "a red dress", "--seed", 5, "-o", out, "--overwrite").exit_code == 0


def test_compares_modes_and_reads_prompts_from_a_file(vvs: Vvs, tiny_bundle: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("# two garments\nred dress\n\nblue shirt\n")
    out = tmp_path / "out"
    result = vvs(
        "generate", tiny_bundle, "--file", prompts, "--mode", "ar", "--mode", "vvs",
        "-o", out, "--json", "-", "--contact-sheet",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    images = json.loads(result.stdout)["images"]
    assert [(image["mode"], image["prompt"]) for image in images] == [
        ("ar", "red dress"), ("ar", "blue shirt"), ("vvs", "red dress"), ("vvs", "blue shirt"),
    ]  # fmt: skip
    assert images[0]["statistics"]["step_compression"] == 1
    with Image.open(out / "contact-sheet.png") as sheet:
        assert sheet.width > sheet.height


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a purple dress"], "does not know the word 'purple'"),
        (["a a a a a a a"], "has 7 words, but this model takes at most 6"),
        ([], "no prompt is given"),
        (["red", "--policy", "uniform:1"], "uniform interval is 1, but it must be an integer >= 2"),
        (["red", "--policy", "sometimes"], "unknown skip policy 'sometimes'"),
        (["red", "--acceptance", "lantern:k=4,delta=-1"], "lantern delta is -1.0"),
        (["red", "--acceptance", "lantern:k=500,delta=0.1"], "501 nearest codes per token are needed"),
        (["red", "--mode", "ar", "--acceptance", "lantern"], "no draft tree"),
        (["red", "--mode", "faster"], "unknown mode 'faster'; there is ar, eagle"),
        (["red", "--tree", "oak"], "unknown draft tree 'oak'"),
        (["red", "--selector", "best"], "unknown path selector 'best'"),
        (["red", "--temperature", "-1"], "temperature is -1.0"),
        (["red", "--top-p", "0"], "top_p is 0.0"),
        (["red", "--top-k", "-1"], "top_k is -1"),
        (["red", "--cfg", "nan"], "cfg_scale is nan"),
        (["red", "--batch", "5"], "batch is 5, but this bundle's engines take at most 4"),
        (["red", "--count", "0"], "--count is 0"),
        (["red", "--seed", "-3"], "seed is -3"),
        (["red", "--threads", "0"], "threads is 0"),
    ],
)
def test_bad_settings(vvs: Vvs, tiny_bundle: Path, tmp_path: Path, arguments: list[str], says: str) -> None:
    result = vvs("generate", tiny_bundle, *arguments, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert says in sentence(result)
    assert not list(tmp_path.glob("out/*"))


def test_bad_bundles(vvs: Vvs, broken_bundle: Path, tmp_path: Path) -> None:
    def says(bundle: Path) -> str:
        for command in (["generate", bundle, "red", "-o", tmp_path / "out"], ["inspect", bundle]):
            result = vvs(*command)
            assert result.exit_code == 2
        return sentence(result)

    assert "there is no bundle at" in says(tmp_path / "nowhere")
    with (broken_bundle / "weights.bin").open("r+b") as weights:
        weights.write(b"xxxx")
    assert "weights.bin has been changed or damaged" in says(broken_bundle)
    manifest = json.loads((broken_bundle / MANIFEST_FILE).read_text())
    (broken_bundle / MANIFEST_FILE).write_text(json.dumps(manifest | {"schema": 2}))
    assert "schema version 2, but this version reads 1" in says(broken_bundle)
    (broken_bundle / MANIFEST_FILE).write_text("{")
    assert "cannot be read as JSON" in says(broken_bundle)


def test_what_cannot_be_done_fails_with_one(vvs: Vvs, tiny_bundle: Path, tmp_path: Path) -> None:
    result = vvs("generate", tiny_bundle, "red", "--backend", "abacus", "-o", tmp_path)
    assert result.exit_code == 1
    assert "unknown backend 'abacus'; there is onnxruntime" in sentence(result)
    (tmp_path / "file").write_text("")
    result = vvs("generate", tiny_bundle, "red", "-o", tmp_path / "file" / "out")
    assert result.exit_code == 1
    assert "not a directory" in sentence(result)
    result = vvs("generate", tiny_bundle, "--file", tmp_path / "none.txt")
    assert result.exit_code == 1
    assert "no such file" in sentence(result)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(vvs: Vvs, tiny_bundle: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = vvs("generate", tiny_bundle, "red", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "permission denied" in sentence(result)


def test_full_disk_leaves_no_half_picture(
    vvs: Vvs, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Image.Image, file: Path, **options: object) -> None:
        Path(file).write_bytes(b"half a picture")
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr(Image.Image, "save", full)
    result = vvs("generate", tiny_bundle, "red", "-o", tmp_path / "out", "--quiet")
    assert result.exit_code == 1
    assert "no space left on device" in sentence(result)
    assert not list((tmp_path / "out").iterdir())


def test_interruption_keeps_only_whole_pictures(
    vvs: Vvs, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vvs.runtime.onnxruntime_engine import OnnxRuntimeEngine

    opened = []
    real = OnnxRuntimeEngine.open

    def second_is_interrupted(self: OnnxRuntimeEngine, requests: int) -> object:
        opened.append(requests)
        if len(opened) == 2:
            raise KeyboardInterrupt
        return real(self, requests)

    monkeypatch.setattr(OnnxRuntimeEngine, "open", second_is_interrupted)
    out = tmp_path / "out"
    result = vvs("generate", tiny_bundle, "red", "blue", "--batch", 1, "-o", out, "--quiet")
    assert result.exit_code == 130
    assert "interrupted" in sentence(result)
    (picture,) = out.iterdir()
    assert read_metadata(picture).prompt == "red"


def test_inspect(vvs: Vvs, tiny_bundle: Path) -> None:
    result = vvs("inspect", tiny_bundle)
    assert result.exit_code == 0
    for expected in ("tiny (default)", "target", "prompted with", "token_embeddings.npy", "a red dress"):
        assert expected in result.stdout
    data = json.loads(vvs("inspect", tiny_bundle, "--json").stdout)
    assert data["geometry"]["grid"] == 6


def test_doctor(vvs: Vvs) -> None:
    result = vvs("doctor")
    assert result.exit_code == 0
    assert "onnxruntime providers" in result.stdout
    assert json.loads(vvs("doctor", "--json").stdout)["healthy"] is True


def test_export_says_what_it_needs(vvs: Vvs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = vvs("export", tmp_path / "none.toml")
    assert result.exit_code == 2
    assert "there is no recipe at" in sentence(result)
    monkeypatch.setattr("vvs.cli.recipes.NEEDED", ("no_such_torch",))
    result = vvs("export", "demo")
    assert result.exit_code == 1
    assert "pip install 'vvs-toolkit[export]'" in sentence(result)


def test_usage_and_version(vvs: Vvs, tiny_bundle: Path) -> None:
    assert vvs("--version").stdout.startswith("vvs 0.")
    for wrong in (["draw"], ["generate"], ["generate", tiny_bundle, "red", "--nonsense"]):
        result = vvs(*wrong)
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr
    assert "Usage" in vvs("generate", "--help").stdout


def test_tracebacks_on_request(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vvs.cli", "inspect", str(tmp_path / "none")]
    environment = {**os.environ, "VVS_TRACEBACK": "1"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert "Traceback" in shown.stderr


def test_starts_without_heavy_modules() -> None:
    code = "import sys, vvs.cli.app; print({'torch', 'onnxruntime', 'PIL', 'rich.table'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert loaded.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--precision", "int4"],
            "precision is 'int4', but it must be one of fp32, fp16, bf16, int8, int8-fp16",
        ),
        (["--keep-fp32", "99"], "layer 99 is to be kept in fp32, but the target's layers are 0..1"),
        (["--keep-fp32", "tail"], "'tail' is to be kept in fp32, but what can be kept is numbers of target"),
        (["--keep-fp32", "text-encoder"], "text-encoder is to be kept in fp32, but this model has none"),
    ],
)
def test_bad_precisions(vvs: Vvs, tiny_recipe: Path, arguments: list[str], says: str) -> None:
    pytest.importorskip("onnxscript")
    for more in ([], ["--dry-run"]):
        result = vvs("export", tiny_recipe, "--precision", "fp16", *arguments, *more)
        assert result.exit_code == 1
        assert says in sentence(result)
    assert not tiny_recipe.with_suffix("").exists()


def test_exports_with_a_part_in_fp32(vvs: Vvs, tiny_recipe: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    out = tmp_path / "bundle"
    result = vvs("export", tiny_recipe, "--precision", "int8-fp16", "--keep-fp32", "1,head", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert "Largest difference from PyTorch in fp16" in result.stderr
    shown = vvs("inspect", out)
    assert "int8-fp16, in fp32: 1, head" in shown.stdout
    drawn = vvs("generate", out, "a red dress", "-o", tmp_path / "pictures", "--threads", 1)
    assert drawn.exit_code == 0, drawn.stderr


def test_a_dry_run_builds_nothing(vvs: Vvs, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    recipe = Path(__file__).parents[2] / "engines" / "llamagen-c2i-b-256.toml"
    result = vvs("export", recipe, "--weights", "random", "--dry-run", "-o", tmp_path / "bundle")
    assert result.exit_code == 0, result.stderr
    assert "110,888,448" in result.stdout
    assert "random weights: target, drafter, image tokenizer" in result.stdout
    result = vvs("export", recipe, "--weights", tmp_path, "--dry-run")
    assert result.exit_code == 1
    assert "there is no checkpoint at" in sentence(result)
    assert not list(tmp_path.iterdir())
