"""Bare target: a checkpoint that no recipe describes, alone or in a folder of weights."""

from collections.abc import Mapping
from pathlib import Path

from vvs.errors import SettingsError
from vvs.export.layouts import (
    SUFFIXES,
    Checkpoint,
    Kind,
    check_kind,
    checkpoint_places,
    is_checkpoint_folder,
    open_checkpoint,
    search,
)
from vvs.export.recipe import RANDOM, PromptKind, Recipe, Sizes, WeightFiles
from vvs.export.sizes import infer_conditioning
from vvs.export.survey import Survey, fit_together, prompt_kind
from vvs.export.vq import VQConfig
from vvs.manifest import TOKENIZER_FILE
from vvs.tree_shape import TreeShape

PUBLISHED_TREE = TreeShape(k=10, depth=4, total=58)


def holds_checkpoints(path: Path) -> bool:
    """Whether a path is a checkpoint, or a folder with some in it."""
    return path.suffix in SUFFIXES if path.is_file() else any(checkpoint_places(path))


def survey_bare_target(path: Path, grid: int | None, *, with_drafter: bool = False) -> Survey:
    """Survey a target that no recipe describes.

    Args:
        path: its checkpoint, which is then taken alone, or a folder that holds it among other weights.
        grid: tokens a side of its images, which its tensors do not tell.
        with_drafter: whether a drafter in that folder is wanted.

    Raises:
        CheckpointError: there is no target, or there are several, or weights do not fit together.
        SettingsError: the grid is not said.

    """
    found = _find(path, with_drafter=with_drafter)
    target = found[Kind.TARGET]
    if grid is None:
        raise SettingsError(
            f"{target.what} does not tell how many tokens a side its images have; say it with --grid"
        )
    folder = path if path.is_dir() else path.parent
    return fit_together(_recipe(found, grid, folder), folder, found)


def _find(path: Path, *, with_drafter: bool) -> dict[Kind, Checkpoint]:
    if path.is_file() or is_checkpoint_folder(path):
        target = open_checkpoint(path)
        check_kind(target, Kind.TARGET)
        return {Kind.TARGET: target}
    wanted = {Kind.TARGET: "", Kind.VQ: RANDOM, Kind.TEXT_ENCODER: RANDOM}
    found = search(path, wanted | ({Kind.DRAFTER: RANDOM} if with_drafter else {}))
    if _prompts_of(found[Kind.TARGET]) != "caption":
        found.pop(Kind.TEXT_ENCODER, None)
    return found


def _prompts_of(target: Checkpoint) -> str:
    return prompt_kind(infer_conditioning(target.state, target.what)[0])


def _recipe(found: Mapping[Kind, Checkpoint], grid: int, folder: Path) -> Recipe:
    """What a recipe would say of these weights."""
    target = found[Kind.TARGET]
    kind = "t5" if Kind.TEXT_ENCODER in found else _prompts_of(target)
    tokenizer = TOKENIZER_FILE if kind == "words" and (folder / TOKENIZER_FILE).is_file() else ""
    return Recipe(
        name=target.path.stem,
        path=target.path,
        geometry=Sizes(grid=grid),
        conditioning=PromptKind(kind),
        trees=(PUBLISHED_TREE,),
        weights=WeightFiles(tokenizer=tokenizer),
        vq=None if Kind.VQ in found else _stand_in_vq(target),
    )


def _stand_in_vq(target: Checkpoint) -> VQConfig:
    """A small image tokenizer that nothing is asked of; ``Survey.random_parts`` names it."""
    codes = target.state["model.embed_tokens.weight"].shape[0]
    return VQConfig(codes, channels=32, channel_multipliers=(1,), residual_blocks=1, latent_channels=32)
