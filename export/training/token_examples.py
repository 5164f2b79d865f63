"""TokenExamples: image tokens and prompts in memory, drawn from at random, and the file they are kept in."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vvs.arrays import IntArray
from vvs.errors import SettingsError
from vvs.export.training.examples import Examples
from vvs.geometry import Geometry
from vvs.manifest import TensorSpec
from vvs.runtime.whole_file import whole_file

TOKENS = "tokens"
NOTE = "made_from"


class TokenExamples:
    """n pictures as tokens ``[n, grid * grid]`` with the prompt encoder's inputs, each ``[n, ...]``.

    Raises:
        SettingsError: there are none, tokens are no integers or lie outside the vocabulary, or arrays do not
            have one length.

    """

    def __init__(
        self,
        tokens: IntArray,
        conditioning: Mapping[str, NDArray[Any]],
        inputs: Sequence[TensorSpec],
        geometry: Geometry,
    ) -> None:
        if tokens.ndim != 2 or tokens.shape[1] != geometry.image_tokens or not len(tokens):
            raise SettingsError(
                f"the image tokens have shape {list(tokens.shape)}, "
                f"but must be [n, {geometry.image_tokens}] with n >= 1"
            )
        if tokens.dtype.kind not in "iu":
            raise SettingsError(f"the image tokens are {tokens.dtype}, but they must be integers")
        if tokens.min() < 0 or tokens.max() >= geometry.vocabulary:
            raise SettingsError(
                f"the image tokens lie in {tokens.min()}..{tokens.max()}, "
                f"but the target's vocabulary is 0..{geometry.vocabulary - 1}"
            )
        for tensor in inputs:
            if tensor.name not in conditioning:
                raise SettingsError(
                    f"the examples have no array {tensor.name!r}; this model's prompts need "
                    f"{' and '.join(other.name for other in inputs)}"
                )
            wanted = (len(tokens), *tensor.shape[1:])
            if conditioning[tensor.name].shape != wanted:
                raise SettingsError(
                    f"{tensor.name} has shape {list(conditioning[tensor.name].shape)}, "
                    f"but must be {list(wanted)}"
                )
        self._tokens = tokens.astype(np.int64, copy=False)
        self._inputs = tuple(inputs)
        self._geometry = geometry
        self.conditioning = {
            tensor.name: conditioning[tensor.name].astype(tensor.dtype, copy=False) for tensor in inputs
        }

    @property
    def sha256(self) -> str:
        """SHA-256 of tokens and prompts, in hexadecimal."""
        digest = hashlib.sha256()
        for array in (self._tokens, *self.conditioning.values()):
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self._tokens)

    def draw(self, batch: int, rng: np.random.Generator) -> Examples:
        """A batch, with repetition."""
        picks = rng.integers(len(self), size=batch)
        arrays = (self._tokens, *self.conditioning.values())
        tokens, *conditioning = (torch.from_numpy(array[picks]) for array in arrays)
        return Examples(tokens, tuple(conditioning))

    def pick(self, rows: NDArray[Any]) -> "TokenExamples":
        """Some of the examples."""
        some = {name: array[rows] for name, array in self.conditioning.items()}
        return TokenExamples(self._tokens[rows], some, self._inputs, self._geometry)

    def split(self, held_out: int, seed: int) -> tuple["TokenExamples", "TokenExamples"]:
        """Examples to train on, and ``held_out`` others.

        Raises:
            SettingsError: nothing would be left to train on.

        """
        if not 0 < held_out < len(self):
            raise SettingsError(
                f"{held_out} of {len(self)} examples are to be held out, "
                "but at least one must be, and one must be left"
            )
        order = np.random.default_rng(seed).permutation(len(self))
        return self.pick(order[held_out:]), self.pick(order[:held_out])

    def save(self, path: Path, made_from: str = "") -> None:
        """Write an ``.npz`` that :func:`load_examples` reads, whole or not at all.

        ``made_from`` is a note that :func:`read_note` reads.
        """
        note = {NOTE: np.array(made_from)} if made_from else {}
        arrays: dict[str, Any] = {TOKENS: self._tokens, **self.conditioning, **note}
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)


def load_examples(path: Path, inputs: Sequence[TensorSpec], geometry: Geometry) -> TokenExamples:
    """Read an ``.npz`` or ``.safetensors`` file with ``tokens`` and the prompt encoder's inputs.

    Raises:
        SettingsError: it cannot be read, or holds something else.

    """
    arrays = _arrays(path)
    return TokenExamples(arrays[TOKENS], arrays, inputs, geometry)


def read_note(path: Path) -> str:
    """What a file that :meth:`TokenExamples.save` wrote was made from; empty if it does not say."""
    arrays = _arrays(path, only=(TOKENS, NOTE))
    return str(arrays.get(NOTE, ""))


def token_width(path: Path) -> int:
    """How many tokens an example of a token file has."""
    return int(_arrays(path, only=(TOKENS,))[TOKENS].shape[-1])


def _arrays(path: Path, only: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of a token file, tokens among them; ``only`` these, or all if it is empty."""
    try:
        arrays = _read(path, only)
    except Exception as error:  # zip, npy and safetensors readers raise a dozen kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SettingsError(f"the token file {path} cannot be read: {reason}") from error
    if TOKENS not in arrays or not arrays[TOKENS].ndim:
        raise SettingsError(f"the token file {path} has no array {TOKENS!r}, only {', '.join(arrays)}")
    return arrays


def _read(path: Path, only: Sequence[str]) -> dict[str, NDArray[Any]]:
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "numpy") as file:
            names = [name for name in file.keys() if name in only or not only]  # noqa: SIM118
            return {name: file.get_tensor(name) for name in names}
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files if name in only or not only}
