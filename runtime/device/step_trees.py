"""StepTrees: which draft trees a step of a batch drafts, as the host knows it before the device decides.

A request with a ``skip_tree`` drafts it in steps that are planned to be skipped, once enough tokens are
emitted. While a step is under way the host knows only roughly how many are: in the first steps, where that
leaves it open, both trees are drafted and the kernels take the right one.
"""

from collections.abc import Callable, Iterator, Sequence
from math import lcm

from vvs.config import GenerationConfig
from vvs.skipping import EMITTED_BEFORE_FIRST_SKIP, PlannedPolicy, Uniform, may_skip

TreeNames = tuple[str, ...]


class StepTrees:
    """Trees of one batch's steps.

    Args:
        configs: R configurations.
        trees: names of the trees in use, in the order in which they are drafted.

    """

    def __init__(self, configs: Sequence[GenerationConfig], trees: TreeNames) -> None:
        # Kept, since asking what a policy can do takes longer than asking what it plans.
        self._plans = [(config, _plan(config)) for config in configs]
        self._trees = trees

    def of(self, step: int, fewest: int, most: int) -> TreeNames:
        """Trees that some request may draft.

        Args:
            step: how many steps were taken before.
            fewest: tokens that every request has emitted at least by then.
            most: tokens that no request has exceeded.

        """
        wanted: set[str | None] = set()
        for config, plan in self._plans:
            planned = plan is not None and plan(step)
            if planned and may_skip(most):
                wanted.add(config.skip_tree)
            if not (planned and may_skip(fewest)):
                wanted.add(config.tree)
        return tuple(name for name in self._trees if name in wanted)

    def kinds(self, steps: int) -> tuple[TreeNames, ...]:
        """Every answer that :meth:`of` can give within so many steps."""
        return tuple(dict.fromkeys(self._answers(steps)))

    def _answers(self, steps: int) -> Iterator[TreeNames]:
        few, many = EMITTED_BEFORE_FIRST_SKIP, EMITTED_BEFORE_FIRST_SKIP + 1
        for step in range(min(steps, many)):  # every step emits a token
            yield self.of(step, few, few)
            yield self.of(step, few, many)
        policies = [config.skipping for config, plan in self._plans if plan is not None]
        periods = [policy.interval if isinstance(policy, Uniform) else steps for policy in policies]
        for step in range(min(steps, lcm(*periods))):
            yield self.of(step, many, many)


def _plan(config: GenerationConfig) -> Callable[[int], bool] | None:
    """Tells in which steps the tree of skipped steps is drafted, if there is one."""
    policy = config.skipping
    return policy.plans if config.skip_tree is not None and isinstance(policy, PlannedPolicy) else None
