"""Settings: a mode's preset, a bundle's recommendations and a user's options, made one configuration.

The keys of ``manifest.defaults``, all optional and written as :meth:`GenerationConfig.describe` writes
them: ``mode``; ``temperature``, ``top_k``, ``top_p``, ``cfg_scale`` and ``draft_cfg_ratio``, which hold for
every mode; ``tree``, for every mode that drafts (the manifest's ``default_tree`` otherwise);
``acceptance``, ``policy`` (also called ``skipping``) and ``selector``, which replace a mode's preset only
where that preset is of the same kind, so that they never turn one mode into another; and ``modes``, which
holds settings for single modes by name and has the last word.
"""

from collections.abc import Mapping
from typing import Any

from vvs.acceptance import ACCEPTANCE_RULES
from vvs.config import GenerationConfig
from vvs.errors import BundleError, SettingsError
from vvs.manifest import Manifest
from vvs.modes import MODES, configure
from vvs.skipping import SKIP_POLICIES, Never, PlannedPolicy

FALLBACK_MODE = "vvs"

ALIASES = {"policy": "skipping"}


def default_mode(manifest: Manifest) -> str:
    """The mode a bundle recommends."""
    return str(manifest.defaults.get("mode", FALLBACK_MODE))


def resolve(manifest: Manifest, mode: str | None = None, **options: Any) -> GenerationConfig:
    """Make the configuration of a mode for one bundle.

    Args:
        manifest: whose recommendations apply.
        mode: one of :data:`vvs.modes.MODES`; None is the bundle's own.
        options: settings that override everything else; None stands for not given.

    Raises:
        SettingsError: an option that is unknown, out of range, or does not go with the others.
        BundleError: the bundle's own recommendations are wrong.

    """
    mode = default_mode(manifest) if mode is None else mode
    if mode not in MODES:
        raise SettingsError(f"unknown mode {mode!r}; there is {', '.join(MODES)}")
    given = {name: value for name, value in _aliased(options).items() if value is not None}
    try:
        recommended = _recommended(manifest, mode)
        configure(mode, **recommended)
    except SettingsError as error:
        raise BundleError(f"the bundle's recommended settings are wrong: {error}") from error
    if not _plans(given.get("skipping")):
        recommended.pop("skip_tree", None)
    return configure(mode, **(recommended | given))


def _recommended(manifest: Manifest, name: str) -> dict[str, Any]:
    """What a bundle recommends for one mode."""
    mode = MODES[name]
    defaults = _aliased(manifest.defaults)
    defaults.pop("mode", None)
    single = defaults.pop("modes", {})
    unknown = sorted(set(single) - set(MODES))
    if unknown:
        raise SettingsError(f"unknown mode {unknown[0]!r}; there is {', '.join(MODES)}")
    own = _aliased(single.get(name, {}))
    tree = defaults.pop("tree", None) or manifest.default_tree
    acceptance = defaults.pop("acceptance", None)
    skipping = defaults.pop("skipping", None)
    if not mode.drafts:
        defaults.pop("selector", None)
        return defaults | own
    defaults["tree"] = tree
    if acceptance is not None and type(ACCEPTANCE_RULES.parse(acceptance)) is type(mode.acceptance):
        defaults["acceptance"] = acceptance
    if skipping is not None and SKIP_POLICIES.parse(skipping) != Never() and mode.skipping != Never():
        defaults["skipping"] = skipping
    return defaults | own


def _plans(policy: Any) -> bool:
    """Whether a policy that was asked for, if any was, plans its skips."""
    parsed = SKIP_POLICIES.parse(policy) if isinstance(policy, str) else policy
    return parsed is None or isinstance(parsed, PlannedPolicy)


def _aliased(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under their own names."""
    return {ALIASES.get(name, name): value for name, value in settings.items()}
