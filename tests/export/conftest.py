"""The recorded models as a model set, and one bundle of them that all export tests share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from recordings import PUBLISHED_TREE, load_golden, tensors

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet


@pytest.fixture(scope="session")
def golden_models() -> ModelSet:
    """Target, drafter, image tokenizer and codebook as recorded."""
    from vvs.export.drafter import Drafter, DrafterConfig
    from vvs.export.llamagen import CaptionConditioning, Target, TargetConfig
    from vvs.export.model_set import ModelSet
    from vvs.export.vq import VQConfig, VQTokenizer
    from vvs.geometry import Geometry
    from vvs.tree_shape import TreeShape

    geometry = Geometry(
        grid=16,
        vocabulary=512,
        code_dim=8,
        prompt_length=120,
        layers=2,
        heads=4,
        head_dim=16,
        hidden=64,
        guidance_rows=2,
        image_size=32,
    )
    target = Target(TargetConfig(geometry, CaptionConditioning(32), ffn=128))
    drafter = Drafter(DrafterConfig(geometry, ffn=128))
    vq = VQTokenizer(
        VQConfig(codes=512, code_dim=8, channels=32, channel_multipliers=(1, 2), latent_channels=64)
    )
    target.load_state_dict(tensors(load_golden("target_weights")))
    drafter.load_state_dict(tensors(load_golden("drafter_weights")))
    vq.load_state_dict(tensors(load_golden("vq_weights")))
    return ModelSet(
        name="recorded",
        target=target.eval(),
        drafter=drafter.eval(),
        vq=vq.eval(),
        codebook=load_golden("codebook")["latents"].astype(np.float32),
        trees={PUBLISHED_TREE: TreeShape(k=10, depth=4, total=58)},
        default_tree=PUBLISHED_TREE,
        max_requests=4,
    )


@pytest.fixture(scope="session")
def golden_bundle(golden_models: ModelSet, request: pytest.FixtureRequest) -> Path:
    """The recorded models as a bundle; kept in pytest's cache, so only a first run pays for tracing."""
    from vvs.export.bundle import export_bundle

    path = request.config.cache.mkdir("vvs") / "recorded"
    export_bundle(golden_models, path)
    return path
