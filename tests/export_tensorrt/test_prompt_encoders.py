"""TensorRT takes the prompt encoders that recipes can name: engines built for real, with no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vvs.export.bundle import export_bundle
from vvs.export.precision import Numerics
from vvs.export.recipe import RANDOM, load_recipe
from vvs.export.tensorrt.builder import build_engines
from vvs.export.tensorrt.profiles import RequestRange
from vvs.export.tensorrt.settings import BuildSettings
from vvs.manifest import ENCODE_PROMPT
from vvs.runtime.bundle import Bundle

if TYPE_CHECKING:
    from pathlib import Path

    from vvs.runtime.tensorrt_package import TensorRT

RECIPE = """
name = "captions"
max_requests = 2

[geometry]
grid = 4
vocabulary = 96
code_dim = 8
prompt_length = 12
layers = 1
heads = 2
head_dim = 16
hidden = 32
guidance_rows = 2
image_size = 8
ffn = 32

[conditioning]
kind = "t5"
caption_dim = 24

[[trees]]
k = 2
depth = 1
total = 4

[vq]
codes = 96
channels = 32
channel_multipliers = [1, 1]
residual_blocks = 1
latent_channels = 32

[text_encoder]
vocabulary = 90
hidden = 24
layers = 2
heads = 2
head_dim = 12
ffn = 16
"""


def test_builds_a_text_encoder_in_half_precision(rtx: TensorRT, tmp_path: Path) -> None:
    (tmp_path / "captions.toml").write_text(RECIPE)
    numerics = Numerics("fp16")
    models = load_recipe(tmp_path / "captions.toml").survey(RANDOM).models(numerics)
    export_bundle(models, tmp_path / "captions", numerics=numerics)
    settings = BuildSettings("tensorrt-rtx", ("sm_89",), (ENCODE_PROMPT,), RequestRange(1, 1, 2))
    (outcome,) = build_engines(Bundle.open(tmp_path / "captions"), settings)
    assert outcome.bytes > 0
