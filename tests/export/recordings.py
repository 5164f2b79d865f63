"""Recordings of the published implementation that pin the modules and their graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
PUBLISHED_TREE = "k10-d4-n58"


def load_golden(name: str) -> dict[str, Any]:
    """The arrays of one recording."""
    path = GOLDEN / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"the recording {name}.npz is not beside the repository (in ../shared/golden)")
    with np.load(path) as arrays:
        return dict(arrays)


def tensors(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(a.astype(np.float32)) for name, a in arrays.items()}
