"""Layouts: what a checkpoint is, told from its keys and never from its name.

A checkpoint that is opened here has this package's names, whatever layout it came in.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from vvs.errors import CheckpointError
from vvs.export.checkpoint import (
    State,
    read_config,
    read_state,
    rename_target,
    rename_text_encoder,
    sha256_of_tensors,
)
from vvs.export.recipe import RANDOM
from vvs.export.sizes import Config

SEARCH_DEPTH = 2
"""Folders inside folders that are looked into for checkpoints."""
SUFFIXES = (".pt", ".pth", ".bin", ".safetensors", ".npz")


class Kind(Enum):
    """What a checkpoint is of; the value is its name in sentences."""

    TARGET = "target"
    DRAFTER = "drafter"
    VQ = "image tokenizer"
    TEXT_ENCODER = "text encoder"


@dataclass(frozen=True)
class Layout:
    """One way of naming a model's tensors, known by a tensor that every model in it has, and no other."""

    kind: Kind
    name: str
    key: str


LAYOUTS = (
    Layout(Kind.TARGET, "LlamaGen, original", "layers.0.attention.wqkv.weight"),
    Layout(Kind.TARGET, "LlamaGen, Hugging Face style", "model.layers.0.self_attn.q_proj.weight"),
    Layout(Kind.DRAFTER, "EAGLE drafter", "layers.0.self_attn.q_proj.weight"),
    Layout(Kind.VQ, "LlamaGen VQ", "encoder.conv_blocks.0.res.0.conv1.weight"),
    Layout(Kind.TEXT_ENCODER, "T5", "encoder.block.0.layer.0.SelfAttention.q.weight"),
)
FOREIGN = (
    ("model.vqmodel.", "a Chameleon model"),
    ("model.layers.0.self_attn.q_norm", "a Chameleon model"),
    ("transformer_blocks.", "a diffusion transformer"),
    ("down_blocks.", "a diffusion U-Net or its decoder"),
    ("text_model.", "a CLIP text encoder"),
    ("encoder.down.", "a VQ model of another family"),
)
"""Beginnings of names in models of other families, to say what someone has brought."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, opened and recognised; its tensors have this package's names."""

    path: Path
    layout: Layout
    state: State
    config: Config

    @property
    def what(self) -> str:
        """The checkpoint in sentences."""
        return f"the {self.layout.kind.value} {self.path}"

    @property
    def dtypes(self) -> str:
        """The dtypes of its tensors, the commonest first."""
        counted = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in self.state.values())
        return ", ".join(name for name, _ in counted.most_common())

    @property
    def sha256(self) -> str:
        """SHA-256 of its tensors."""
        return sha256_of_tensors(self.state)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for tensor in self.state.values())


def recognise(names: Iterable[str]) -> Layout | None:
    """The layout that has these tensors."""
    have = set(names)
    if any(name.startswith(start) for start, _ in FOREIGN for name in have):
        return None
    return next((layout for layout in LAYOUTS if layout.key in have), None)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read and recognise a checkpoint.

    Raises:
        CheckpointError: it cannot be read, or is of no kind that is known here.

    """
    state = read_state(path)
    layout = recognise(state)
    if layout is None:
        raise CheckpointError(f"{path} is {_unknown(state)}, but it must be one of {_kinds()}")
    if layout.kind is Kind.TARGET:
        state = rename_target(state)
    elif layout.kind is Kind.TEXT_ENCODER:
        state = rename_text_encoder(state)
    return Checkpoint(path, layout, state, read_config(path))


def _kinds() -> str:
    return ", ".join(f"{layout.kind.value} ({layout.name})" for layout in LAYOUTS)


def _unknown(state: State) -> str:
    for start, family in FOREIGN:
        if any(name.startswith(start) for name in state):
            return family
    first = ", ".join(sorted(state)[:3])
    return f"of no known kind (its first tensors are {first})"


def is_checkpoint_folder(path: Path) -> bool:
    """Whether a folder is one checkpoint, sharded or not, under the names that Hugging Face gives them."""
    return any(path.glob("model.safetensors*")) or any(path.glob("pytorch_model.bin*"))


def checkpoint_places(folder: Path, depth: int = SEARCH_DEPTH) -> Iterator[Path]:
    """Files and folders inside ``folder`` that may be checkpoints, in order of their names."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_file() and path.suffix in SUFFIXES:
            yield path
        elif path.is_dir():
            if is_checkpoint_folder(path):
                yield path
            elif depth > 1:
                yield from checkpoint_places(path, depth - 1)


def check_kind(checkpoint: Checkpoint, kind: Kind) -> None:
    """Raise CheckpointError if a checkpoint is of another kind than the one it is to be."""
    if checkpoint.layout.kind is not kind:
        raise CheckpointError(
            f"{checkpoint.path} is to be the {kind.value}, but its tensors are of kind "
            f"{checkpoint.layout.kind.value} ({checkpoint.layout.name})"
        )


def search(folder: Path, missing: Mapping[Kind, str], taken: Iterable[Path] = ()) -> dict[Kind, Checkpoint]:
    """Recognise everything in a folder by its tensors; one of each missing kind is wanted.

    Args:
        folder: where to look.
        missing: kinds, and the names under which they were looked for, empty if under none; those named
            ``random`` may be absent.
        taken: checkpoints that are something else already.

    Raises:
        CheckpointError: a kind is absent, or there several times.

    """
    candidates: dict[Kind, list[Checkpoint]] = {kind: [] for kind in missing}
    others = []
    for path in sorted(set(checkpoint_places(folder)) - set(taken)):
        try:
            checkpoint = open_checkpoint(path)
        except CheckpointError as error:
            others.append(str(error))
            continue
        candidates.get(checkpoint.layout.kind, []).append(checkpoint)
    found = {}
    for kind, name in missing.items():
        several = candidates[kind]
        if len(several) > 1:
            paths = ", ".join(sorted(one.path.name for one in several))
            raise CheckpointError(
                f"{folder} holds several of kind {kind.value} ({paths}); keep one there, "
                f"or {'name one in a recipe' if name in ('', RANDOM) else f'name it {name}'}"
            )
        if several:
            found[kind] = several[0]
        elif name != RANDOM:
            also = f"; also, {'; '.join(others)}" if others else ""
            raise CheckpointError(
                f"there is no checkpoint at {folder / name}, "
                f"and nothing else in {folder} is a {kind.value}{also}"
            )
    return found
