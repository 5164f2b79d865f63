"""Agreement: greedy runs of the same prompts, with and without drafting and on several backends, compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vvs.arrays import IntArray
from vvs.benchmarks.divergence import Divergence, explain, first_difference
from vvs.config import GenerationConfig
from vvs.decoding import Loop, finish
from vvs.engine import Engine
from vvs.errors import SettingsError
from vvs.runtime.bundle import Bundle
from vvs.runtime.prompts import encode
from vvs.sampling import Sampling
from vvs.uniforms import UniformStream


@dataclass(frozen=True)
class Comparison:
    """One run against another."""

    ours: str
    theirs: str
    pictures: int
    differences: tuple[Divergence, ...]

    @property
    def equal(self) -> int:
        """Pictures with the same tokens."""
        return self.pictures - len(self.differences)

    @property
    def wrong(self) -> bool:
        """Whether a difference is no tie."""
        return any(not difference.tie for difference in self.differences)

    @property
    def sentence(self) -> str:
        """About the first difference that matters most."""
        if not self.differences:
            return "-"
        worst = min(self.differences, key=lambda d: (d.tie, d.position))
        kind = "a tie" if worst.tie else "NO tie"
        return (
            f"token {worst.position}: {worst.ours} or {worst.theirs}, "
            f"logit gap {worst.gap:.2g} of {worst.largest:.3g}: {kind}"
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        differences = [difference.to_dict() for difference in self.differences]
        return {**vars(self), "differences": differences, "equal": self.equal, "wrong": self.wrong}


def compare_greedy(
    bundle: Bundle,
    loops: Mapping[str, Loop],
    judge: Callable[[], Engine],
    prompts: Sequence[str],
    trees: Sequence[str],
    cfg_scale: float,
) -> list[Comparison]:
    """On every loop, every tree against plain AR decoding; then every loop's AR against the first's.

    Args:
        bundle: what the loops run.
        loops: by the name of their backend.
        judge: opens an engine whose logits tell what a difference is; called if there is one.
        prompts: to draw.
        trees: names of the draft trees to try.
        cfg_scale: guidance scale.

    Raises:
        SettingsError: the bundle lacks a tree.

    """
    unknown = [tree for tree in trees if tree not in bundle.manifest.trees]
    if unknown:
        raise SettingsError(f"unknown tree {unknown[0]!r}; there is {', '.join(bundle.manifest.trees)}")
    conditioning = [encode(bundle, [prompt]) for prompt in prompts]
    comparisons, plain = [], {}

    def compare(ours: str, theirs: str, runs: list[IntArray], others: list[IntArray]) -> Comparison:
        found = [
            explain(judge(), given, a, b, cfg_scale, bundle.manifest.precision)
            for given, a, b in zip(conditioning, runs, others, strict=True)
            if first_difference(a, b) is not None
        ]
        return Comparison(ours, theirs, len(prompts), tuple(d for d in found if d is not None))

    for name, loop in loops.items():

        def draw(tree: str | None, loop: Loop = loop) -> list[IntArray]:
            config = GenerationConfig(
                sampling=Sampling(temperature=0),
                cfg_scale=cfg_scale,
                tree=tree,
                coupled=tree is not None and bundle.manifest.trees[tree].coupled,
            )
            return [finish(loop.run(c, [config], [UniformStream(0)])).tokens[0] for c in conditioning]

        plain[name] = draw(None)
        for tree in trees:
            runs = draw(tree)
            comparisons.append(compare(f"{name}, {tree}", f"{name}, AR", runs, plain[name]))
    (first, reference), *others = plain.items()
    for name, runs in others:
        comparisons.append(compare(f"{name}, AR", f"{first}, AR", runs, reference))
    return comparisons
