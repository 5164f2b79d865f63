"""Modes: the named starting points of a configuration, from plain AR to skipped verification."""

from dataclasses import dataclass, field
from typing import Any

from vvs.acceptance import AcceptanceRule, Exact, Lantern, LanternPlusPlus
from vvs.config import GenerationConfig, override
from vvs.errors import SettingsError
from vvs.skipping import Never, SkipPolicy, Uniform


@dataclass(frozen=True)
class Mode:
    """A named way of decoding; every setting of it can be overridden."""

    summary: str
    drafts: bool = True
    """Whether it needs a draft tree."""
    acceptance: AcceptanceRule = field(default_factory=Exact)
    skipping: SkipPolicy = field(default_factory=Never)


MODES: dict[str, Mode] = {
    "ar": Mode("one target pass per token, no drafter", drafts=False),
    "eagle": Mode("draft trees, verified without loss"),
    "lantern": Mode("draft trees, near tokens accepted within a fixed bound", acceptance=Lantern()),
    "lantern++": Mode(
        "draft trees, near tokens accepted within a bound relative to the token's own probability",
        acceptance=LanternPlusPlus(),
    ),
    "vvs": Mode(
        "as lantern, and every second step takes a drafted path without running the target",
        acceptance=Lantern(),
        skipping=Uniform(2),
    ),
}
"""Modes by name. A new one is one entry here."""


def configure(mode: str, tree: str | None = None, **settings: Any) -> GenerationConfig:
    """Make the configuration of a named mode.

    Args:
        mode: one of :data:`MODES`.
        tree: name of the draft tree to use; needed by every mode that drafts, and only by those.
        settings: what differs from the mode's own, named and written as in
            :meth:`vvs.config.GenerationConfig.describe`.

    Raises:
        SettingsError: unknown mode or setting, a value out of range, or settings that contradict each other.

    """
    if mode not in MODES:
        raise SettingsError(f"unknown mode {mode!r}; there is {', '.join(MODES)}")
    chosen = MODES[mode]
    if chosen.drafts and tree is None:
        raise SettingsError(f"mode {mode!r} drafts, so it needs the name of a draft tree, but tree is None")
    if not chosen.drafts and tree is not None:
        raise SettingsError(f"mode {mode!r} drafts nothing, but tree is {tree!r}; leave the tree out")
    return override(
        GenerationConfig(tree=tree, acceptance=chosen.acceptance, skipping=chosen.skipping), settings
    )
