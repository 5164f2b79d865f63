"""Layouts: what a checkpoint is, told from its keys and never from its name.

A checkpoint that is opened here has this package's names, whatever layout it came in.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from vvs.errors import CheckpointError
from vvs.export.checkpoint import State, read_config, read_state, rename_target, rename_text_encoder
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
            if any(path.glob("model.safetensors*")) or any(path.glob("pytorch_model.bin*")):
                yield path
            elif depth > 1:
                yield from checkpoint_places(path, depth - 1)
