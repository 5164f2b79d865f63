"""GenerationConfig: every setting of one request, checked when it is made, written and read as text.

What a setting means stands with the thing it sets: sampling, acceptance, skipping, selection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vvs.acceptance import ACCEPTANCE_RULES, AcceptanceRule, Exact
from vvs.checks import check_flag, check_real
from vvs.errors import SettingsError
from vvs.registry import Registry
from vvs.sampling import Sampling
from vvs.selection import PATH_SELECTORS, PathSelector, RandomPath
from vvs.skipping import SKIP_POLICIES, Never, PlannedPolicy, SkipPolicy

DEFAULT_CFG_SCALE = 3.0

_REGISTRIES: Mapping[str, Registry[Any]] = {
    "acceptance": ACCEPTANCE_RULES,
    "skipping": SKIP_POLICIES,
    "selector": PATH_SELECTORS,
}


@dataclass(frozen=True)
class GenerationConfig:
    """How one image is generated."""

    sampling: Sampling = field(default_factory=Sampling)
    cfg_scale: float = DEFAULT_CFG_SCALE
    """Guidance s in ``u + s (c - u)``; has no effect on an engine without unconditional rows."""
    tree: str | None = None
    """Name of the engine's draft tree to use; None drafts nothing, which is plain AR decoding."""
    acceptance: AcceptanceRule = field(default_factory=Exact)
    skipping: SkipPolicy = field(default_factory=Never)
    selector: PathSelector = field(default_factory=RandomPath)
    skip_tree: str | None = None
    """Name of the tree to draft in steps that are planned to be skipped; None is ``tree``. No target sees
    it, so it can be wider than one that is verified. Needs a :class:`vvs.skipping.PlannedPolicy`."""
    draft_cfg_ratio: float = 1.0
    """Guidance scale of drafting over that of the target. Above 1, drafts lean further towards the prompt,
    which makes up for what skipped steps lose of it; rules that are exact stay so, whatever is drafted."""
    coupled: bool = False
    """Draw tokens by noise that depends on seed and position alone (:mod:`vvs.noise`). Exact modes then draw
    the very tokens of plain AR decoding, whatever is drafted. Coupled trees, which mostly draft those, need
    it."""

    def __post_init__(self) -> None:
        check_real("cfg_scale", self.cfg_scale, at_least=0)
        check_flag("coupled", self.coupled)
        check_real("draft_cfg_ratio", self.draft_cfg_ratio, at_least=0)
        if self.tree is not None and (not isinstance(self.tree, str) or not self.tree):
            raise SettingsError(f"tree is {self.tree!r}, but it must be the name of a draft tree or None")
        if self.skip_tree is not None and not (self.tree and isinstance(self.skipping, PlannedPolicy)):
            raise SettingsError(
                f"skip_tree is {self.skip_tree!r}, but only a mode that drafts, and skips by a plan such as "
                "uniform:2, knows which steps to draft it in; leave it out"
            )
        if not isinstance(self.sampling, Sampling):
            raise SettingsError(f"sampling is {self.sampling!r}, but it must be a Sampling")
        for name, registry in _REGISTRIES.items():
            registry.describe(getattr(self, name))  # raises for anything that is not registered
        if self.tree is None and self.skipping != Never():
            raise SettingsError(
                f"skipping is {SKIP_POLICIES.describe(self.skipping)} but there is no draft tree to take "
                "unverified tokens from; name a tree, or use never"
            )
        if self.tree is None and self.acceptance != Exact():
            raise SettingsError(
                f"acceptance is {ACCEPTANCE_RULES.describe(self.acceptance)} but there is no draft tree "
                "whose tokens it could accept; name a tree, or use exact"
            )

    @property
    def draws_by_noise(self) -> bool:
        """Whether tokens are drawn by noise; greedy ones are not drawn at all."""
        return self.coupled and not self.sampling.greedy

    @property
    def draft_cfg_scale(self) -> float:
        """Guidance scale of drafting."""
        return self.cfg_scale * self.draft_cfg_ratio

    def describe(self) -> dict[str, Any]:
        """Write all settings as plain JSON values that :meth:`parse` reads back."""
        return {
            "temperature": float(self.sampling.temperature),
            "top_k": int(self.sampling.top_k),
            "top_p": float(self.sampling.top_p),
            "cfg_scale": float(self.cfg_scale),
            "draft_cfg_ratio": float(self.draft_cfg_ratio),
            "coupled": self.coupled,
            "tree": self.tree,
            "skip_tree": self.skip_tree,
            "acceptance": ACCEPTANCE_RULES.describe(self.acceptance),
            "skipping": SKIP_POLICIES.describe(self.skipping),
            "selector": PATH_SELECTORS.describe(self.selector),
        }

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> "GenerationConfig":
        """Read what :meth:`describe` wrote; what is left out keeps its default, unknown names are errors."""
        return override(cls(), settings)


def override(config: GenerationConfig, settings: Mapping[str, Any]) -> GenerationConfig:
    """Return ``config`` with some settings changed.

    Args:
        config: where all other settings come from.
        settings: names and values as :meth:`GenerationConfig.describe` writes them; a rule, a policy or a
            selector may also be given as an object.

    """
    sampling = {field.name: getattr(config.sampling, field.name) for field in fields(Sampling)}
    values = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "sampling"}
    for name, value in settings.items():
        if name in sampling:
            sampling[name] = value
        elif name in values:
            read = name in _REGISTRIES and isinstance(value, str)
            values[name] = _REGISTRIES[name].parse(value) if read else value
        else:
            raise SettingsError(f"unknown setting {name!r}; there is {', '.join([*sampling, *values])}")
    return GenerationConfig(sampling=Sampling(**sampling), **values)
