"""Which eager baselines a bundle can be measured against. Imports PyTorch only when they are asked for."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vvs.benchmarks.bench import PipelineRunner
from vvs.benchmarks.contender import Contender
from vvs.benchmarks.timing import Runner
from vvs.engine import Conditioning, Engine
from vvs.errors import SettingsError
from vvs.runtime.bundle import Bundle
from vvs.runtime.pipeline import Pipeline
from vvs.runtime.prompts import encode

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet


PUBLISHED = "vvs as published"
"""Our VVS with the eager loop's settings: one tree, the exact rule, a path at random."""


def recipe_models(recipe: Path, bundle: Bundle) -> "ModelSet":
    """The models of a bundle's recipe in PyTorch, with the bundle's trees and its rounding.

    Raises:
        SettingsError: PyTorch is missing, or the recipe makes another model than the bundle's.

    """
    try:
        from vvs.export.dequantised import dequantise
        from vvs.export.precision import Numerics
        from vvs.export.recipe import load_recipe
    except ImportError as error:
        raise SettingsError(
            "eager PyTorch needs torch, which this Python does not have; "
            "install it with `pip install 'vvs-toolkit[export]'`"
        ) from error
    manifest = bundle.manifest
    numerics = Numerics(manifest.precision, manifest.kept_fp32)
    models = load_recipe(recipe).models(numerics=numerics)
    if models.geometry != manifest.geometry:
        raise SettingsError(
            f"{recipe} makes a model of {models.geometry}, but the bundle's is {manifest.geometry}"
        )
    return replace(dequantise(models, numerics), trees=manifest.trees, default_tree=manifest.default_tree)


def eager_engine(recipe: Path, bundle: Bundle) -> Engine:
    """The recipe's models behind the Engine protocol; see :func:`recipe_models`."""
    models = recipe_models(recipe, bundle)
    from vvs.export.eager import EagerEngine

    return EagerEngine(models)


def eager_runners(
    recipe: Path, pipeline: Pipeline, threads: int | None = None
) -> tuple[list[Runner], list[str]]:
    """AR, compiled AR, EAGLE and VVS in eager PyTorch, and our VVS with the same settings.

    Args:
        recipe: of the bundle, with its weights.
        pipeline: of the bundle.
        threads: that PyTorch computes with from now on; None leaves that to PyTorch.

    Returns:
        The runners, and sentences about what is left out: everything where there is no PyTorch.

    """
    if find_spec("torch") is None:
        return [], [
            "PyTorch is not installed, so that its loops are left out; "
            "`pip install 'vvs-toolkit[export]'` brings it."
        ]
    models = recipe_models(recipe, pipeline.bundle)
    import torch

    from vvs.benchmarks.eager_baselines import EagerAR, EagerVVS

    if threads is not None:
        torch.set_num_threads(threads)

    def encode_one(prompt: str) -> Conditioning:
        return encode(pipeline.bundle, [prompt])

    # What is published knows no coupled sampling, nor what else our recommendations add to it.
    tree = pipeline.bundle.manifest.default_tree
    drafting: dict[str, Any] = {"acceptance": "exact", "coupled": False, "tree": tree}
    ar = pipeline.configure("ar", coupled=False)
    runners: list[Runner] = [EagerAR(models, encode_one, ar)]
    notes = []
    reason = _cannot_compile()
    if reason:
        notes.append(f"torch.compile is left out: {reason}.")
    else:
        runners.append(EagerAR(models, encode_one, ar, compiled=True))
    published = replace(
        pipeline.configure("vvs", **drafting, selector="random", draft_cfg_ratio=1.0), skip_tree=None
    )
    runners += [
        EagerVVS(models, encode_one, pipeline.configure("eagle", **drafting)),
        EagerVVS(models, encode_one, published),
        PipelineRunner(Contender(PUBLISHED, published), pipeline),
    ]
    return runners, notes


def _cannot_compile() -> str:
    """Why torch.compile does not work here; empty if it does."""
    import torch

    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(3))
    except Exception as error:  # the compiler's own, the C++ compiler's, the linker's
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return ""
