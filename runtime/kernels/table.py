"""The table of kernels: their names and typed parameters, in the order in which the sources declare them.

Both compilers check the sources against it. What each kernel does is in the README beside this file.
"""

from vvs.runtime.device.calls import CONDITION, Kernel, Parameter


def reads(name: str, dtype: str) -> Parameter:
    """A pointer to memory that the kernel reads."""
    return Parameter(name, dtype, pointer=True)


def writes(name: str, dtype: str) -> Parameter:
    """A pointer to memory that the kernel writes, and may read."""
    return Parameter(name, dtype, pointer=True, writes=True)


def sizes(*names: str) -> tuple[Parameter, ...]:
    """Sizes that do not change from step to step."""
    return tuple(Parameter(name, "int32", pointer=False) for name in names)


def conditions(*names: str) -> tuple[Parameter, ...]:
    """Conditions that the kernel sets."""
    return tuple(Parameter(name, CONDITION, pointer=False, writes=True) for name in names)


COUNTERS = writes("counters", "int32")
OBSERVED = reads("counters", "int32")
SETTINGS = (reads("choices", "int32"), reads("reals", "float64"), reads("uniforms", "float64"))
KNOWN = reads("known", "int32")
TREE_OUT = (
    writes("tree_tokens", "int32"),
    writes("tree_parents", "int32"),
    writes("tree_depth", "int32"),
    writes("tree_ancestors", "bool"),
    writes("tree_scores", "float32"),
    writes("paths", "int32"),
)

BEGIN = Kernel(
    "vvs_begin",
    (
        COUNTERS,
        *SETTINGS,
        reads("logits", "float32"),
        writes("probabilities", "float64"),
        writes("known", "int32"),
        *sizes("uniform_capacity", "rows", "vocabulary", "prompt", "known_capacity", "image_tokens"),
    ),
)
DRAFT_INPUTS = Kernel(
    "vvs_draft_inputs",
    (
        COUNTERS,
        reads("choices", "int32"),
        reads("reals", "float64"),
        KNOWN,
        reads("feature_cache", "uint8"),
        writes("features", "uint8"),
        writes("tokens", "int64"),
        writes("root", "int64"),
        writes("positions", "int64"),
        writes("count", "int64"),
        writes("past_length", "int64"),
        *sizes("requests", "guidance", "rows", "tree", "known_capacity", "prompt", "window", "feature_bytes"),
    ),
)
PROPOSE = Kernel(
    "vvs_propose",
    (
        COUNTERS,
        reads("choices", "int32"),
        reads("reals", "float64"),
        reads("drafted_tokens", "int64"),
        reads("drafted_parents", "int64"),
        reads("drafted_depth", "int64"),
        reads("drafted_ancestors", "bool"),
        reads("drafted_scores", "float32"),
        *TREE_OUT,
        *sizes("tree", "drafted_nodes", "nodes", "longest_path", "vocabulary"),
    ),
)
PROPOSE_ROOT = Kernel(
    "vvs_propose_root",
    (
        COUNTERS,
        reads("choices", "int32"),
        KNOWN,
        *TREE_OUT,
        *sizes("nodes", "longest_path", "known_capacity"),
    ),
)
SIMILARITY = Kernel(
    "vvs_similarity",
    (
        OBSERVED,
        reads("choices", "int32"),
        reads("tree_tokens", "int32"),
        reads("paths", "int32"),
        reads("directions", "float64"),
        writes("similarity", "float64"),
        *sizes("nodes", "longest_path", "code_dim"),
    ),
)
DECIDE = Kernel(
    "vvs_decide",
    (
        COUNTERS,
        *SETTINGS,
        reads("similarity", "float64"),
        reads("tree_parents", "int32"),
        reads("tree_scores", "float32"),
        reads("paths", "int32"),
        *sizes("uniform_capacity", "nodes", "longest_path"),
    ),
)
SKIP = Kernel(
    "vvs_skip",
    (
        COUNTERS,
        reads("tree_tokens", "int32"),
        reads("paths", "int32"),
        writes("known", "int32"),
        writes("taken", "int32"),
        *sizes("nodes", "longest_path", "known_capacity", "image_tokens"),
    ),
)
TARGET_INPUTS = Kernel(
    "vvs_target_inputs",
    (
        OBSERVED,
        KNOWN,
        reads("tree_tokens", "int32"),
        reads("tree_depth", "int32"),
        reads("tree_ancestors", "bool"),
        reads("embeddings", "uint8"),
        writes("embeds", "uint8"),
        writes("positions", "int64"),
        writes("ancestors", "bool"),
        writes("past_length", "int64"),
        *sizes("requests", "guidance", "rows", "nodes", "known_capacity", "prompt", "embedding_bytes"),
    ),
)
ACCEPT = Kernel(
    "vvs_accept",
    (
        COUNTERS,
        *SETTINGS,
        reads("logits", "float32"),
        reads("tree_tokens", "int32"),
        reads("tree_parents", "int32"),
        reads("nearest", "int32"),
        writes("probabilities", "float64"),
        writes("known", "int32"),
        writes("taken", "int32"),
        writes("kept", "int32"),
        *sizes("uniform_capacity", "rows", "vocabulary", "nodes", "longest_path", "neighbours"),
        *sizes("known_capacity", "kept_capacity", "image_tokens"),
    ),
)
COMMIT = Kernel(
    "vvs_commit",
    (
        OBSERVED,
        reads("kept", "int32"),
        reads("new_rows", "uint8"),
        writes("cache", "uint8"),
        reads("features", "uint8"),
        writes("feature_cache", "uint8"),
        Parameter("new_stride", "int64", pointer=False),
        Parameter("cache_stride", "int64", pointer=False),
        *sizes("requests", "guidance", "tensors", "heads", "rows", "capacity", "row_bytes"),
        *sizes("feature_bytes", "window", "kept_capacity", "end_column", "count_column"),
    ),
)
NOISE = Kernel(
    "vvs_noise",
    (
        OBSERVED,
        reads("choices", "int32"),
        reads("uniforms", "float64"),
        writes("noise", "float32"),
        *sizes("uniform_capacity", "levels", "vocabulary"),
    ),
)
ROUTE_DRAFT = Kernel(
    "vvs_route_draft",
    (
        OBSERVED,
        reads("choices", "int32"),
        reads("reals", "float64"),
        *conditions("drafts"),
        *sizes("requests", "tree"),
    ),
)
ROUTE_STEP = Kernel("vvs_route_step", (OBSERVED, *conditions("skips", "verifies"), *sizes("requests")))
END_STEP = Kernel(
    "vvs_end_step",
    (OBSERVED, writes("history", "int32"), *conditions("running"), *sizes("requests", "image_tokens")),
)

KERNELS = (
    BEGIN,
    DRAFT_INPUTS,
    PROPOSE,
    PROPOSE_ROOT,
    SIMILARITY,
    DECIDE,
    SKIP,
    TARGET_INPUTS,
    ACCEPT,
    COMMIT,
    NOISE,
    ROUTE_DRAFT,
    ROUTE_STEP,
    END_STEP,
)
