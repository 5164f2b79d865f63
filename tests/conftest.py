"""Shared by all tests: a tiny bundle of random weights, exported once and kept in pytest's cache.

The exporter does nothing where an unchanged export lies already, so only the first run pays for tracing.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

TINY_WORDS = ("a", "red", "blue", "green", "dress", "shirt", "shoe")
TINY_TREE = "tiny"
TINY_RECIPE = """
name = "tiny"
examples = ["a red dress"]
default_tree = "k3-d2-n8"

[weights]
tokenizer = "tokenizer.json"

[geometry]
grid = 6
heads = 2

[conditioning]
kind = "words"

[[trees]]
k = 3
depth = 2
total = 8
"""


@pytest.fixture(scope="session")
def tiny_models() -> ModelSet:
    """A word-conditional model of 6x6 tokens with random weights."""
    torch = pytest.importorskip("torch")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    from vvs.export.drafter import Drafter, DrafterConfig
    from vvs.export.llamagen import Target, TargetConfig, WordConditioning
    from vvs.export.model_set import ModelSet, unit_codebook
    from vvs.export.vq import VQConfig, VQTokenizer
    from vvs.geometry import Geometry
    from vvs.tree_shape import TreeShape

    vocabulary = {word: i for i, word in enumerate(("[PAD]", "[UNK]", *TINY_WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - not a password
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    geometry = Geometry(
        grid=6,
        vocabulary=96,
        code_dim=8,
        prompt_length=6,
        layers=2,
        heads=2,
        head_dim=16,
        hidden=32,
        guidance_rows=2,
        image_size=12,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = Target(TargetConfig(geometry, WordConditioning(len(vocabulary), 16), ffn=64))
        drafter = Drafter(DrafterConfig(geometry, ffn=64))
        vq = VQTokenizer(
            VQConfig(codes=96, channels=32, channel_multipliers=(1, 1), residual_blocks=1, latent_channels=32)
        )
        for module in (target, drafter):
            for parameter in module.parameters():
                if parameter.ndim > 1:
                    torch.nn.init.normal_(parameter, std=0.08)
    return ModelSet(
        name="tiny",
        target=target,
        drafter=drafter,
        vq=vq,
        codebook=unit_codebook(vq),
        trees={TINY_TREE: TreeShape(k=3, depth=2, total=8)},
        default_tree=TINY_TREE,
        tokenizer=tokenizer.to_str(),
        defaults={"mode": "vvs", "acceptance": "lantern:k=16,delta=0.3", "cfg_scale": 2.0},
        examples=("a red dress",),
        max_requests=4,
    )


@pytest.fixture(scope="session")
def deep_models(tiny_models: ModelSet) -> ModelSet:
    """The tiny model with a drafter of two layers."""
    torch = pytest.importorskip("torch")
    from vvs.export.drafter import Drafter, DrafterConfig

    with torch.random.fork_rng():
        torch.manual_seed(1)
        drafter = Drafter(DrafterConfig(tiny_models.geometry, ffn=64, layers=2))
        for parameter in drafter.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return tiny_models.with_drafter(drafter)


@pytest.fixture(scope="session")
def coupled_models(deep_models: ModelSet) -> ModelSet:
    """The same, with trees that are drafted by shared noise."""
    from vvs.tree_shape import TreeShape

    shapes = [TreeShape(3, 0, 3, coupled=True), TreeShape(3, 2, 8, coupled=True)]
    trees = {TINY_TREE: deep_models.trees[TINY_TREE]} | {shape.name: shape for shape in shapes}
    return dataclasses.replace(deep_models, trees=trees)


@pytest.fixture(scope="session")
def coupled_bundle(coupled_models: ModelSet, request: pytest.FixtureRequest) -> Path:
    """Their bundle; not to be changed."""
    pytest.importorskip("onnxscript")
    from vvs.export.bundle import export_bundle

    path = request.config.cache.mkdir("vvs") / "coupled"
    export_bundle(coupled_models, path)
    return path


@pytest.fixture(scope="session")
def tiny_bundle(tiny_models: ModelSet, request: pytest.FixtureRequest) -> Path:
    """The exported bundle; not to be changed, see :func:`broken_bundle`."""
    pytest.importorskip("onnxscript")
    from vvs.export.bundle import export_bundle

    path = request.config.cache.mkdir("vvs") / "tiny"
    export_bundle(tiny_models, path)
    return path


@pytest.fixture(scope="session")
def tiny_bundle_in(tiny_models: ModelSet, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Exports the same models in another precision; not to be changed."""
    pytest.importorskip("onnxscript")
    from vvs.export.bundle import export_bundle
    from vvs.export.precision import Numerics

    def exported(precision: str) -> Path:
        path: Path = request.config.cache.mkdir("vvs") / f"tiny-{precision}"
        export_bundle(tiny_models, path, numerics=Numerics(precision))
        return path

    return exported


@pytest.fixture
def tiny_recipe(tmp_path: Path, tiny_models: ModelSet) -> Path:
    """A recipe of the tiny model, its weights beside it."""
    from safetensors.torch import save_file

    for part in ("target", "drafter", "vq"):
        module = getattr(tiny_models, part)
        state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        save_file(state, tmp_path / f"{part}.safetensors")
    assert tiny_models.tokenizer is not None
    (tmp_path / "tokenizer.json").write_text(tiny_models.tokenizer)
    (tmp_path / "tiny.toml").write_text(TINY_RECIPE)
    return tmp_path / "tiny.toml"


@pytest.fixture
def broken_bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that a test may break."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
