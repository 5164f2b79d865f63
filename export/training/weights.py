"""Half-precision safetensors files of the demo model's parts, written whole or not at all."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vvs.errors import CheckpointError
from vvs.runtime.whole_file import whole_file


def save_weights(module: nn.Module, path: Path) -> None:
    """Write the module's tensors, floats as fp16, under a temporary name and rename."""
    with whole_file(path) as temporary:
        save_file({name: _half(value) for name, value in module.state_dict().items()}, temporary)


def _half(value: Tensor) -> Tensor:
    return (value.half() if value.is_floating_point() else value).contiguous()


def load_weights(module: nn.Module, path: Path) -> None:
    """Load a file written by :func:`save_weights` into a module of the same shape.

    Raises:
        CheckpointError: the file is not there, damaged, or of another shape.
    """
    if not path.is_file():
        raise CheckpointError(f"the weights {path} are missing; `make train` makes them")
    try:
        state = load_file(path)
        module.load_state_dict({k: v.float() if v.dtype == torch.float16 else v for k, v in state.items()})
    except (SafetensorError, RuntimeError) as error:
        raise CheckpointError(
            f"the weights {path} do not fit {type(module).__name__}: {str(error).splitlines()[-1].strip()}"
        ) from error
