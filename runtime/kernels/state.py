"""The state of R requests on a device: what lies between two kernels, all of it at fixed addresses.

Struct of arrays. Every array has the request as its first axis; :func:`state_arrays` gives names, shapes and
dtypes, and the README beside this file says which kernel reads and writes what. The columns below stand in
``state.cuh`` again, and the compiler checks that they are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vvs.acceptance import ACCEPTANCE_RULES, AcceptanceRule, Exact, Lantern, LanternPlusPlus
from vvs.arrays import Float64Array
from vvs.checks import check_integer
from vvs.config import GenerationConfig
from vvs.errors import SettingsError
from vvs.selection import PATH_SELECTORS, MostConfidentPath, PathSelector, RandomPath, SampledPath
from vvs.skipping import SKIP_POLICIES, Dynamic, Never, Share, SkipPolicy, Uniform

MAX_NODES = 256
"""Most nodes of a tree, the root included: kernels hold a tree in shared memory."""

MAX_PATH = 16
"""Most nodes on one path, the root included."""

NO_TREE = -1
"""Tree of a request that decodes without drafting."""


class Counter(IntEnum):
    """Columns of ``counters [R, 20]`` int32. All that the host ever needs to read back."""

    PHASE = 0
    """A :class:`Phase`."""
    STEPS = 1
    """Steps taken, verified and skipped."""
    EMITTED = 2
    """Image tokens that stand, the root not counted."""
    CHAIN = 3
    """Of those, the newest, which the target has not seen."""
    TARGET_ROWS = 4
    """Rows in the target's KV cache, those included that the next commit writes."""
    DRAFTER_ROWS = 5
    """Rows in the drafter's KV cache, those included that the next commit writes."""
    KNOWN = 6
    """Tokens in ``known``; the last one is the root. May exceed the image by the surplus of the last step."""
    PENDING = 7
    """Drafter rows that the next drafting consumes; after the prefill P."""
    FEATURES = 8
    """Image-token features ever pushed to the feature cache; number i lies in slot i mod window."""
    CURSOR = 9
    """Uniform numbers consumed."""
    NODES = 10
    """Nodes of the tree, the root included."""
    PATHS = 11
    """Paths of the tree."""
    LONGEST = 12
    """Nodes on its longest path."""
    DECISION = 13
    """A :class:`Decision`: what this step is."""
    CHOSEN_PATH = 14
    """Path that the selector chose for a skipped step."""
    CHOSEN = 15
    """m of that path: tokens that the skipped step emits."""
    TAKEN = 16
    """What the last step that this request took came to: drafted tokens accepted, or m."""
    KEPT = 17
    """Target rows of this step that the next commit writes; 0 for whoever did not verify."""
    DRAFTED = 18
    """Drafter rows of this step that the next commit writes."""
    FAULT = 19
    """A :class:`Fault`; a request with one stands still."""


class Phase(IntEnum):
    """What the last step was; as :class:`vvs.progress.Phase`."""

    PREFILLED = 0
    VERIFIED = 1
    SKIPPED = 2
    COMPLETE = 3


class Decision(IntEnum):
    """What a step is for one request."""

    IDLE = 0
    VERIFY = 1
    SKIP = 2


class Fault(IntEnum):
    """What stopped a request."""

    NONE = 0
    LOGITS = 1
    """The target's logits have no finite maximum."""
    UNIFORMS = 2
    """More uniform numbers were asked for than were drawn."""
    TREE = 3
    """The drafted tree is none: a node before its parent, a wrong depth, a token outside the vocabulary."""


class StepColumn(IntEnum):
    """Columns of ``history [R, image_tokens, 3]`` int32: what each step of a request came to."""

    STEP_DECISION = 0
    """A :class:`Decision`."""
    STEP_TAKEN = 1
    """As ``TAKEN`` after it."""
    STEP_KNOWN = 2
    """As ``KNOWN`` after it."""


FAULT_SENTENCES: Mapping[Fault, str] = {
    Fault.LOGITS: "the target returned logits whose maximum is not a finite number",
    Fault.UNIFORMS: "the uniform numbers drawn for a request are used up",
    Fault.TREE: "the drafter returned a tree with a node before its parent, at a wrong depth or of no token",
}


class Choice(IntEnum):
    """Columns of ``choices [R, 10]`` int32: settings of a request that are integers."""

    RULE = 0
    """0 exact, 1 lantern, 2 lantern++."""
    RULE_K = 1
    """Nearest codes whose probability is summed."""
    TOP_K = 2
    """0 keeps all."""
    POLICY = 3
    """0 never, 1 uniform, 2 dynamic, 3 share."""
    INTERVAL = 4
    """Of the uniform policy."""
    SELECTOR = 5
    """0 random, 1 sampled, 2 confident."""
    TRUNCATE = 6
    """1 with dynamic truncation, else 0."""
    TREE = 7
    """Number of the request's tree, or -1."""
    SKIP_TREE = 8
    """Number of the tree it drafts in steps that are planned to be skipped, or -1 if that is the same one."""
    COUPLED = 9
    """1 if tokens are drawn by noise whose key is the first uniform number, else 0."""


class Real(IntEnum):
    """Columns of ``reals [R, 6]`` float64: settings of a request that are real numbers."""

    TEMPERATURE = 0
    """0 is greedy."""
    TOP_P = 1
    BOUND = 2
    """delta of lantern, lambda of lantern++."""
    THRESHOLD = 3
    """Of the dynamic policy."""
    SHARE_OF_SKIPS = 4
    """Of the share policy."""
    PATH_TEMPERATURE = 5
    """Of the sampled selector."""


@dataclass(frozen=True)
class StateSizes:
    """Sizes of one run."""

    requests: int
    """R."""
    vocabulary: int
    """V."""
    image_tokens: int
    guidance: int
    """g, guidance rows per request."""
    nodes: int
    """N, nodes of the largest tree in use, the root included; 1 without a tree."""
    longest_path: int
    """L, nodes on the longest path of any tree in use; 1 without a tree."""
    feature_bytes: int
    """Bytes of one feature ``[D]``."""
    skips_in_a_row: int = 1
    """Most steps that a request skips one after the other."""

    def __post_init__(self) -> None:
        for name in ("requests", "vocabulary", "image_tokens", "guidance", "nodes", "longest_path"):
            check_integer(name, getattr(self, name), at_least=1)
        check_integer("feature_bytes", self.feature_bytes, at_least=1)
        check_integer("skips_in_a_row", self.skips_in_a_row, at_least=1)
        if self.nodes > MAX_NODES or self.longest_path > MAX_PATH:
            raise SettingsError(
                f"a draft tree of {self.nodes} nodes, {self.longest_path} on one path, is too large: "
                f"the GPU kernels hold up to {MAX_NODES} nodes, {MAX_PATH} on one path"
            )

    @property
    def known_capacity(self) -> int:
        """Tokens that ``known`` holds: the image and the surplus of a last step."""
        return self.image_tokens + self.longest_path

    @property
    def chain_capacity(self) -> int:
        """Most tokens of a chain, to which chain rows are padded: depth + 1 for each skip in a row."""
        return self.skips_in_a_row * (self.longest_path - 1)

    @property
    def draft_capacity(self) -> int:
        """A: most drafter rows of a call after the first, to which they are padded: depth + 2."""
        return self.longest_path

    @property
    def kept_capacity(self) -> int:
        """Most target rows that one step keeps: the chain and a whole path."""
        return self.chain_capacity + self.longest_path

    @property
    def window(self) -> int:
        """Slots of the feature cache."""
        return self.longest_path

    @property
    def uniform_capacity(self) -> int:
        """Uniform numbers that no run can exceed.

        A step takes at most one number for the choice of a path, one for each drafted node and one for the
        next root, and emits at least one token; the first root takes one. Where tokens are drawn by noise,
        its key takes one and a step at most one.
        """
        return 1 + self.image_tokens * (self.nodes + 1)


class ArraySpec(NamedTuple):
    """One array of the state."""

    shape: tuple[int, ...]
    dtype: str


def state_arrays(sizes: StateSizes) -> Mapping[str, ArraySpec]:
    """All arrays of the state, by name. To be zeroed before a run, then filled as the README says."""
    R, N, L = sizes.requests, sizes.nodes, sizes.longest_path
    return {
        "counters": ArraySpec((R, len(Counter)), "int32"),
        "choices": ArraySpec((R, len(Choice)), "int32"),
        "reals": ArraySpec((R, len(Real)), "float64"),
        "uniforms": ArraySpec((R, sizes.uniform_capacity), "float64"),
        "known": ArraySpec((R, sizes.known_capacity), "int32"),
        "tree_tokens": ArraySpec((R, N), "int32"),
        "tree_parents": ArraySpec((R, N), "int32"),
        "tree_depth": ArraySpec((R, N), "int32"),
        "tree_ancestors": ArraySpec((R, N, N), "bool"),
        "tree_scores": ArraySpec((R, N), "float32"),
        "paths": ArraySpec((R, N, L), "int32"),
        "similarity": ArraySpec((R,), "float64"),
        "probabilities": ArraySpec((R, sizes.vocabulary), "float64"),
        "taken": ArraySpec((R, L), "int32"),
        "kept": ArraySpec((R, sizes.kept_capacity), "int32"),
        "history": ArraySpec((R, sizes.image_tokens, len(StepColumn)), "int32"),
        "feature_cache": ArraySpec((sizes.guidance, R, sizes.window, sizes.feature_bytes), "uint8"),
    }


def encode_settings(
    configs: Sequence[GenerationConfig], trees: Sequence[str]
) -> tuple[NDArray[np.int32], Float64Array]:
    """Write the requests' settings as the arrays ``choices [R, 10]`` and ``reals [R, 6]``.

    Args:
        configs: R configurations.
        trees: names of the trees in use; a request's trees are stored as their index here.

    Raises:
        SettingsError: a rule, policy or selector that no kernel knows, such as one of your own.

    """
    choices = np.zeros((len(configs), len(Choice)), np.int32)
    reals = np.zeros((len(configs), len(Real)), np.float64)
    for row, real, config in zip(choices, reals, configs, strict=True):
        row[Choice.RULE], row[Choice.RULE_K], real[Real.BOUND] = _rule(config.acceptance)
        _write_policy(row, real, config.skipping)
        _write_selector(row, real, config.selector)
        row[Choice.TOP_K] = config.sampling.top_k
        row[Choice.COUPLED] = config.draws_by_noise
        row[Choice.TREE], row[Choice.SKIP_TREE] = (
            NO_TREE if name is None else trees.index(name) for name in (config.tree, config.skip_tree)
        )
        real[Real.TEMPERATURE], real[Real.TOP_P] = config.sampling.temperature, config.sampling.top_p
    return choices, reals


def _rule(rule: AcceptanceRule) -> tuple[int, int, float]:
    match rule:
        case Exact() if type(rule) is Exact:
            return 0, 0, 0.0
        case Lantern():
            return 1, rule.k, rule.delta
        case LanternPlusPlus():
            return 2, rule.k, rule.lam
    raise _unknown("acceptance rule", ACCEPTANCE_RULES.describe(rule), "exact, lantern and lantern++")


def _write_policy(row: NDArray[np.int32], real: Float64Array, policy: SkipPolicy) -> None:
    match policy:
        case Never():
            row[Choice.POLICY] = 0
        case Uniform():
            row[Choice.POLICY], row[Choice.INTERVAL] = 1, policy.interval
        case Dynamic():
            row[Choice.POLICY], real[Real.THRESHOLD] = 2, policy.threshold
        case Share():
            row[Choice.POLICY], real[Real.SHARE_OF_SKIPS] = 3, policy.share
        case _:
            raise _unknown("skip policy", SKIP_POLICIES.describe(policy), "never, uniform, dynamic and share")


def _write_selector(row: NDArray[np.int32], real: Float64Array, selector: PathSelector) -> None:
    match selector:
        case RandomPath():
            row[Choice.SELECTOR], row[Choice.TRUNCATE] = 0, selector.truncate
        case SampledPath():
            row[Choice.SELECTOR], row[Choice.TRUNCATE] = 1, selector.truncate
            real[Real.PATH_TEMPERATURE] = selector.temperature
        case MostConfidentPath():
            row[Choice.SELECTOR], row[Choice.TRUNCATE] = 2, selector.truncate
        case _:
            raise _unknown(
                "path selector", PATH_SELECTORS.describe(selector), "random, sampled and confident"
            )


def _unknown(kind: str, value: Any, known: str) -> SettingsError:
    return SettingsError(
        f"the {kind} {value} has no kernel: a GPU knows {known}; use one of them, or --backend onnxruntime"
    )
