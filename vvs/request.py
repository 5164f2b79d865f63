"""Request: one image in the making, between two steps of the loop.

Holds what must survive a step: the known tokens, the counts, what the drafter has yet to consume and
the features it may reuse. Calls no engine.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vvs.arrays import FeatureArray, IntArray
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.feature_cache import FeatureCache
from vvs.noise import GumbelNoise
from vvs.progress import Phase, Progress
from vvs.skipping import PlannedPolicy, StepView, decide, may_skip
from vvs.statistics import Statistics
from vvs.step import Outcome, Skipped, Verified
from vvs.tree import DraftTree, root_only
from vvs.tree_shape import TreeShape
from vvs.uniforms import Uniforms


class Pending(NamedTuple):
    """What the drafter consumes next: features and, for each, the token one position later."""

    features: FeatureArray  # [g, A, D]
    tokens: IntArray  # [A], the last one is the root


class Request:
    """State of one request. ``index`` is its row in the session."""

    def __init__(
        self,
        index: int,
        config: GenerationConfig,
        uniforms: Uniforms,
        image_tokens: int,
        shapes: Sequence[TreeShape],
        noise: GumbelNoise | None = None,
    ) -> None:
        self.index = index
        self.config = config
        self.uniforms = uniforms
        self.noise = noise
        """What tokens are drawn with, if the request is coupled and not greedy."""
        self.statistics = Statistics(image_tokens)
        self.known: list[int] = []
        """Image tokens in order; the last one is the root."""
        self.progress: Progress
        self.tree: DraftTree
        self.pending: Pending
        self.image_tokens = image_tokens
        # Kept, since asking what a policy can do takes longer than asking what it plans.
        self._plans = config.skipping.plans if isinstance(config.skipping, PlannedPolicy) else None
        longest = max((shape.longest_path for shape in shapes), default=0)
        self._features = FeatureCache(longest - 1) if longest else None

    @property
    def complete(self) -> bool:
        """Whether all tokens of the image are known."""
        return self.progress.phase is Phase.COMPLETE

    @property
    def chain(self) -> IntArray:
        """Emitted tokens that the target has not seen, oldest first, ``[chain]``."""
        root = len(self.known) - 1
        return np.array(self.known[root - self.progress.chain : root], np.int64)

    @property
    def tree_name(self) -> str | None:
        """The tree to draft in this step; None for plain AR decoding."""
        config, progress = self.config, self.progress
        if config.skip_tree is not None and self._plans is not None:
            skips = self._plans(progress.steps) and may_skip(progress.emitted)
            return config.skip_tree if skips else config.tree
        return config.tree

    def begin(self, root: int, features: FeatureArray) -> None:
        """Take the first root and the prompt's features ``[g, P, D]``.

        The drafter consumes them paired with P - 1 zeros and the root.
        """
        prompt = features.shape[1]
        self.progress = Progress.after_prefill(prompt)
        self._know([root], np.append(np.zeros(prompt - 1, np.int64), root), features)

    def propose_root(self) -> None:
        """Make the tree of plain AR decoding."""
        self.tree = root_only(self.known[-1])

    def propose(self, tree: DraftTree) -> None:
        """Take a drafted tree; the drafter has consumed what was pending."""
        self.tree = tree
        self.progress.drafted()

    def skip(self, codebook: Codebook) -> Skipped | None:
        """Decide whether this step is skipped and, if so, choose the path; None means verify."""
        view = StepView(
            step=self.progress.steps,
            emitted=self.progress.emitted,
            last_skipped=self.progress.phase is Phase.SKIPPED,
            tree=self.tree,
            codebook=codebook,
        )
        if not decide(self.config.skipping, view):
            return None
        path, length = self.config.selector.choose(self.tree, self.uniforms)
        nodes = self.tree.branching.path(path)[: length + 1]
        return Skipped(np.array(nodes, np.int64), path) if length else None

    def advance(self, outcome: Outcome) -> None:
        """Emit what the step came to and set out what the drafter consumes next."""
        new = self.tree.tokens[outcome.nodes[1:]].tolist()
        if isinstance(outcome, Verified):
            self.progress.verified(accepted=len(new))
            new.append(outcome.root)
            features = outcome.features[:, -len(new) :]
            if self._features:
                self._features.push(outcome.features)
        else:
            self.progress.skipped(len(new))
            features = self._stale(len(new))
        self._know(new, np.array(new, np.int64), features)

    def completes_with(self, outcome: Outcome) -> bool:
        """Whether all image tokens will be known after ``outcome``."""
        return len(self.known) + outcome.nodes.size - isinstance(outcome, Skipped) >= self.image_tokens

    def image(self) -> IntArray:
        """Return the image's tokens ``[grid * grid]``; surplus ones of the last step are dropped."""
        return np.array(self.known[: self.image_tokens], np.int64)

    def _know(self, new: list[int], consumed: IntArray, features: FeatureArray) -> None:
        """Take new tokens; the drafter consumes ``consumed`` and ``features`` next."""
        self.known += new
        self.pending = Pending(features, consumed)
        if len(self.known) >= self.image_tokens:
            self.progress.completed()

    def _stale(self, length: int) -> FeatureArray:
        if self._features is None:
            raise RuntimeError("a step was skipped without a draft tree")
        return self._features.stale(length)
