"""Plan: what an export found and what it would build, for ``vvs export --dry-run``."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vvs.export.drafter import Drafter, DrafterConfig
from vvs.export.footprint import Footprint, parameters
from vvs.export.layouts import Checkpoint
from vvs.export.llamagen import ClassConditioning, Target, TargetConfig
from vvs.export.precision import TORCH_DTYPES
from vvs.export.resources import in_bytes
from vvs.export.survey import Survey, without_memory
from vvs.export.t5 import T5Config, T5Encoder
from vvs.export.vq import VQConfig, VQTokenizer
from vvs.precision import PRECISIONS

Config = TargetConfig | DrafterConfig | VQConfig | T5Config


def footprint(survey: Survey, precision: str) -> Footprint:
    """The footprint of a survey's models."""
    trees = len(survey.recipe.trees)
    return Footprint.of(survey.target, survey.drafter, survey.vq, survey.text_encoder, trees, precision)


def memory(survey: Survey, precision: str) -> int:
    """Most memory that exporting takes; weights that are used as they lie on disk are not counted."""
    dtype = TORCH_DTYPES[PRECISIONS[precision].compute]
    loaded = 0
    for kind, config in survey.configs.items():
        checkpoint = survey.checkpoints.get(kind)
        mapped = checkpoint is not None and all(t.dtype == dtype for t in checkpoint.state.values())
        loaded += 0 if mapped else count_parameters(config) * dtype.itemsize
    return footprint(survey, precision).memory(loaded)


def count_parameters(config: Config) -> int:
    """Parameters of the model that a config describes."""
    match config:
        case TargetConfig():
            return parameters(without_memory(Target, config))
        case DrafterConfig():
            return parameters(without_memory(Drafter, config))
        case VQConfig():
            return parameters(without_memory(VQTokenizer, config))
        case T5Config():
            return parameters(without_memory(T5Encoder, config))


def show_plan(console: Console, survey: Survey, precision: str, place: Path) -> None:
    """Print what was found, and what would be built at ``place``."""
    found = Table(title=f"Found for {survey.recipe.name}", title_justify="left")
    for column in ("part", "where", "layout", "dtype", "parameters", "sizes"):
        found.add_column(column, justify="right" if column == "parameters" else "left", overflow="fold")
    for kind, config in survey.configs.items():
        where, layout, dtype = _source(survey.checkpoints.get(kind))
        found.add_row(kind.value, where, layout, dtype, f"{count_parameters(config):,}", sizes_of(config))
    console.print(found)
    built = footprint(survey, precision)
    files = Table(title=f"To be built in {precision} at {place}", title_justify="left")
    files.add_column("what")
    files.add_column("bytes", justify="right")
    for what, count in built.files.items():
        files.add_row(what, f"{count:,}")
    files.add_row("in all", f"{built.total:,}")
    console.print(files)
    for line in notes(survey, precision):
        console.print(line, soft_wrap=True)


def _source(checkpoint: Checkpoint | None) -> tuple[str, str, str]:
    if checkpoint is None:
        return "random", "-", "-"
    return str(checkpoint.path), checkpoint.layout.name, checkpoint.dtypes


def sizes_of(config: Config) -> str:
    """What a part's tensors say, in a few words."""
    match config:
        case TargetConfig():
            g, conditioning = config.geometry, config.conditioning
            prompt = (
                f"{conditioning.classes} classes"
                if isinstance(conditioning, ClassConditioning)
                else f"captions of {g.prompt_length} x {conditioning.caption_dim}"
            )
            return (
                f"{g.layers} layers, {g.heads} heads, {g.hidden} wide, FFN {config.ffn}, "
                f"{g.vocabulary} tokens, {g.grid}x{g.grid} tokens to {g.image_size} px, {prompt}"
            )
        case DrafterConfig():
            layers = "1 layer" if config.layers == 1 else f"{config.layers} layers"
            bias = "with" if config.bias else "no"
            return f"{layers}, {config.geometry.hidden} wide, FFN {config.ffn}, {bias} bias"
        case VQConfig():
            return f"ds{config.downsampling}, {config.codes} codes of {config.code_dim}"
        case T5Config():
            width = f"{config.heads} heads, {config.hidden} wide"
            return f"{config.layers} layers, {width}, {config.vocabulary} words"


def notes(survey: Survey, precision: str) -> Iterator[str]:
    """What else there is to know before exporting."""
    trees = ", ".join(tree.name for tree in survey.recipe.trees)
    yield f"draft trees: {trees}"
    yield f"memory while exporting: about {in_bytes(memory(survey, precision))}"
    warning = random_note(survey.random_parts)
    if warning:
        yield warning


def random_note(random_parts: tuple[str, ...]) -> str:
    """A sentence about random weights; empty if there are none."""
    if not random_parts:
        return ""
    if random_parts == ("drafter",):
        return (
            "random weights: drafter. Nobody has published one for this model: lossless modes stay exact, "
            "but nothing gets faster until one is trained"
        )
    return f"random weights: {', '.join(random_parts)}. Good for sizes and times, not for pictures"
