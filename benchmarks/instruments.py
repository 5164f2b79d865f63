"""Instruments: the networks that look at pictures, as their packages load them. They are never downloaded.

InceptionV3 is torch-fidelity's (the weights and the scaling of the original FID). open_clip loads CLIP, and
HPSv2, which is a CLIP with weights of its own.
"""

import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vvs.arrays import Float64Array
from vvs.benchmarks.optional import require
from vvs.benchmarks.picture_folder import PictureFile, captions_of
from vvs.errors import SettingsError

EXTRA = "eval"
BATCH = 16
"""Pictures looked at in one pass."""
INCEPTION_LAYER = "2048"
HPS_MODEL = "ViT-H-14"
CONFIG_FILE = "open_clip_config.json"

_UNFIT = (
    RuntimeError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    pickle.PickleError,
)
"""What packages raise for weights that are damaged or another model's."""

Advance = Callable[[int], None]
"""Told how many more pictures were looked at."""


class Inception:
    """Features of InceptionV3 for FID, precision and recall."""

    def __init__(self, weights: Path) -> None:
        require("torch_fidelity", "FID", EXTRA)
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        if not weights.is_file():
            raise SettingsError(f"there is no file of InceptionV3's weights at {weights}")
        try:
            self._network = FeatureExtractorInceptionV3(
                "inception", [INCEPTION_LAYER], feature_extractor_weights_path=str(weights)
            ).to(_device())
        except _UNFIT as error:
            raise _unfit("InceptionV3 of torch-fidelity", weights, error) from error

    def features(self, files: Sequence[PictureFile], advance: Advance) -> Float64Array:
        """Features ``[n, 2048]`` of pictures of any size; the network scales them.

        Raises:
            SettingsError: a picture cannot be read.

        """
        import torch

        rows = []
        for start in range(0, len(files), BATCH):
            pixels = [one.load() for one in files[start : start + BATCH]]
            alike = len({one.shape for one in pixels}) == 1
            for some in [pixels] if alike else [[one] for one in pixels]:
                images = torch.from_numpy(np.stack(some)).permute(0, 3, 1, 2).to(_device())
                with torch.no_grad():
                    (found,) = self._network(images)
                rows.append(found.double().cpu().numpy())
            advance(len(pixels))
        return np.concatenate(rows)


class Clip:
    """Cosines between pictures and captions."""

    def __init__(self, weights: Path, model: str | None = None) -> None:
        """Open a model.

        Args:
            weights: a folder as open_clip models are published, with ``open_clip_config.json``, or a file.
            model: open_clip's name of the file's architecture; a folder says it itself.

        Raises:
            SettingsError: open_clip is missing, or the weights are, or do not fit.

        """
        # Before huggingface_hub is imported: whatever a configuration names, nothing is fetched.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        open_clip = require("open_clip", "a CLIP model", EXTRA)
        name = _model_name(open_clip, weights, model)
        source = None if weights.is_dir() else str(weights)
        try:
            network, self._prepare = open_clip.create_model_from_pretrained(name, source, device=_device())
            self._tokenise = open_clip.get_tokenizer(name)
        except _UNFIT as error:
            raise _unfit(f"open_clip's model {name.rpartition(':')[2]}", weights, error) from error
        self._network = network.eval()

    def cosines(self, files: Sequence[PictureFile], advance: Advance) -> Float64Array:
        """Cosine ``[n]`` of each picture and its caption.

        Raises:
            SettingsError: a picture cannot be read, or has no caption.

        """
        import torch
        from PIL import Image

        captions, found = captions_of(files), []
        for start in range(0, len(files), BATCH):
            some = files[start : start + BATCH]
            images = torch.stack([self._prepare(Image.fromarray(one.load())) for one in some])
            words = self._tokenise(captions[start : start + BATCH])
            with torch.no_grad():
                seen = self._network.encode_image(images.to(_device()), normalize=True)
                meant = self._network.encode_text(words.to(_device()), normalize=True)
            found.append((seen * meant).sum(-1).double().cpu().numpy())
            advance(len(some))
        return np.concatenate(found)


def _model_name(open_clip: Any, weights: Path, model: str | None) -> str:
    if weights.is_dir():
        if not (weights / CONFIG_FILE).is_file():
            raise SettingsError(f"the folder {weights} has no {CONFIG_FILE}, as open_clip's models have")
        return f"local-dir:{weights}"
    if not weights.is_file():
        raise SettingsError(f"there are no weights of a CLIP model at {weights}")
    if model is None:
        raise SettingsError(
            f"{weights} is a file, so say with --clip-model which model it is of, such as ViT-B-32-quickgelu"
        )
    if model not in open_clip.list_models():
        raise SettingsError(f"open_clip knows no model {model!r}; it has ViT-B-32, ViT-L-14 and others")
    return model


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _unfit(what: str, weights: Path, error: Exception) -> SettingsError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return SettingsError(f"{weights} does not hold weights of {what}: {reason}")
