"""Overflow: which part of a model leaves its precision's range on real prompts, and keeping it in float32.

Every prompt is encoded, run through the target, followed by a few drawn tokens, and drafted from, in PyTorch
and in the bundle's precision. The first activation that is not finite names the part; what comes after it is
spoilt and says nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from vvs.arrays import Float32Array, IntArray
from vvs.engine import Conditioning, DraftRows, TargetRows
from vvs.export.eager import EagerEngine, EagerSession
from vvs.export.model_set import ModelSet
from vvs.export.precision import DRAFTER, TEXT_ENCODER, Numerics, can_be_kept, part_of
from vvs.export.rounding import in_dtypes, with_rounded_products

DRAWN_TOKENS = 4
"""Tokens that are drawn after a prompt."""
CFG_SCALE = 4.0
"""Guidance stretches what the head is given; published models are used at up to 7.5, most below this."""
SEED = 0


class Overflow(NamedTuple):
    """The first activation of a prompt that is not finite."""

    part: str
    """As ``--keep-fp32`` names it, or, of what cannot be kept, the module's name."""
    prompt: str


class _NotFiniteError(Exception):
    """Ends a run; carries the part."""


def keep_overflowing(
    models: ModelSet, numerics: Numerics, prompts: Mapping[str, Conditioning], console: Console
) -> Numerics:
    """Report what overflows; returns the numerics, with ``auto`` with these parts kept in float32.

    Args:
        models: in any dtype.
        numerics: how the bundle will compute.
        prompts: inputs of the prompt encoder for one request each, by what they are called.
        console: takes the report.

    """
    if not prompts:
        console.print("no prompts are known, so no activations were looked at", highlight=False)
        return numerics
    while True:
        found = overflows(with_rounded_products(in_dtypes(models, numerics), numerics), prompts)
        for overflow in found:
            console.print(sentence(overflow, numerics), soft_wrap=True, highlight=False)
        parts = {o.part for o in found if can_be_kept(o.part)} - set(numerics.kept)
        if not (numerics.auto and parts):
            return numerics
        numerics = numerics.keeping(parts)


def sentence(overflow: Overflow, numerics: Numerics) -> str:
    """What is said about an overflow."""
    named = f"layer {overflow.part}" if overflow.part.isdecimal() else overflow.part
    done = "it is kept in fp32" if numerics.auto else f"--keep-fp32 {overflow.part} keeps it in fp32"
    if not can_be_kept(overflow.part) or overflow.part in numerics.kept:
        done = "choose another precision"
    return f"{named} is not finite in {numerics.name} on the prompt {overflow.prompt!r}; {done}"


def overflows(models: ModelSet, prompts: Mapping[str, Conditioning]) -> list[Overflow]:
    """What overflows first, for every prompt for which anything does."""
    engine = EagerEngine(models)
    found = []
    with _watched(models):
        for prompt, conditioning in prompts.items():
            try:
                with closing(engine.open(1)) as session:
                    _run(session, conditioning, models)
            except _NotFiniteError as error:
                found.append(Overflow(str(error), prompt))
    return found


def _run(session: EagerSession, conditioning: Conditioning, models: ModelSet) -> None:
    """Prefill, draft once, and draw a few tokens."""
    P, g = models.geometry.prompt_length, models.geometry.guidance_rows
    rng = np.random.default_rng(SEED)
    everyone: IntArray = np.zeros(1, np.int64)
    scale: Float32Array = np.full(1, CFG_SCALE if g == 2 else 1, np.float32)
    one: Float32Array = np.ones(1, np.float32)
    result = session.prefill(conditioning, scale)
    token = _drawn(result.logits, rng)
    following: IntArray = np.zeros((1, P), np.int64)
    following[0, -1] = token
    session.draft(
        everyone,
        DraftRows(
            result.features,
            following,
            1 + np.arange(P)[None],
            np.array([P]),
            np.zeros(1, np.int64),
            scale,
            one,
            one,
        ),
        models.default_tree,
    )
    for place in range(P, P + min(DRAWN_TOKENS, models.geometry.image_tokens)):
        length = np.array([place])
        inputs = TargetRows(np.array([[token]]), length[None], np.ones((1, 1, 1), np.bool_), length, scale)
        token = _drawn(session.verify(everyone, inputs).logits, rng)
        session.commit(everyone, [everyone], length)


def _drawn(logits: Float32Array, rng: np.random.Generator) -> int:
    """A token from the distribution of the last row of ``logits [1, T, V]``."""
    last = logits[0, -1].astype(np.float64)
    weights = np.exp(last - last.max())
    return int(rng.choice(last.size, p=weights / weights.sum()))


@contextmanager
def _watched(models: ModelSet) -> Iterator[None]:
    """While this lasts, modules raise when they give what is not finite."""
    hooks = [
        module.register_forward_hook(_watch(part))
        for whole, name in (
            (models.target, None),
            (models.drafter, DRAFTER),
            (models.text_encoder, TEXT_ENCODER),
        )
        if whole is not None
        for inner, module in whole.named_modules()
        if (part := name or part_of(inner) or inner)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _watch(part: str) -> Any:
    def look(_module: nn.Module, _inputs: object, output: object) -> None:
        if not _finite(output):
            raise _NotFiniteError(part)

    return look


def _finite(output: object) -> bool:
    if isinstance(output, Tensor):
        return not output.is_floating_point() or bool(torch.isfinite(output).all())
    return not isinstance(output, tuple) or all(_finite(part) for part in output)
