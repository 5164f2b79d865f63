"""Folders of small pictures, and networks of random weights saved in exactly the layouts that packages load.

Published weights are not at hand in tests: what is tested is that they would be read, and what follows from
the features whatever they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vvs.runtime.images import PngMetadata, save_png

TINY_CLIP: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


def mend_torchvision() -> None:
    """Declare the two operators without which torchvision does not import.

    Its wheels for GPUs cannot load their compiled part beside a torch for CPUs, and fail over these.
    None of its compiled operators is used here.
    """
    if hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_library"] = library  # it undoes what it declared when it goes


def make_folder(
    folder: Path, count: int, seed: int = 0, *, prompts: list[str] | None = None, size: int = 32
) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for i in range(count):
        middle = rng.uniform(60, 200, 3)
        pixels = np.clip(rng.normal(middle, 40, (size, size, 3)), 0, 255).astype(np.uint8)
        metadata = PngMetadata(prompts[i], i, "vvs", {}, "tiny", "0") if prompts else None
        save_png(folder / f"{i:03}.png", pixels, metadata)
    return folder


def save_inception(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Random weights under torch-fidelity's own names."""
    from torch_fidelity import feature_extractor_inceptionv3 as module

    with monkeypatch.context() as patch, torch.random.fork_rng():
        torch.manual_seed(0)
        patch.setattr(module, "load_state_dict_from_url", lambda *_, **__: {})
        patch.setattr(module.FeatureExtractorInceptionV3, "load_state_dict", lambda *_: None)
        network = module.FeatureExtractorInceptionV3("random", ["2048"])
    torch.save(network.state_dict(), path)
    return path


def save_clip(folder: Path, seed: int = 0) -> Path:
    """A tiny CLIP as open_clip's models are published: a folder with its configuration."""
    import open_clip
    from safetensors.torch import save_file

    folder.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = open_clip.CLIP(**TINY_CLIP)
    mean = {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28]}
    config = {"model_cfg": TINY_CLIP, "preprocess_cfg": mean}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file(network.state_dict(), folder / "open_clip_model.safetensors")
    return folder
