"""Programs: the beats of a step as calls over the memory of a run. Built once; nothing in them changes.

Which kernel reads and writes what, and in which order they go, is in ``runtime/kernels/README.md``.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from vvs.manifest import ENCODE_PROMPT, TARGET, draft_tree_graph, drafter_caches, target_caches
from vvs.runtime.device.array import DeviceArray, array_bytes
from vvs.runtime.device.calls import Argument, Call, Condition, Copy, Enqueue, Kernel, Launch, Program
from vvs.runtime.device.interface import Device, EngineSet
from vvs.runtime.device.run_plan import RunPlan
from vvs.runtime.device.step_trees import TreeNames
from vvs.runtime.kernels import table
from vvs.runtime.kernels.state import Counter


@dataclass(frozen=True)
class ReadBack:
    """Pinned memory that the host reads after a step's decision, and after the last step."""

    counters: DeviceArray
    known: DeviceArray
    history: DeviceArray | None
    """Where images may be decoded as one graph."""


class Programs:
    """All programs of a run.

    Args:
        device: what runs them.
        engines: the bundle's engines on it.
        plan: names and shapes.
        arrays: the plan's memory.
        read_back: where the host reads.

    """

    def __init__(
        self,
        device: Device,
        engines: EngineSet,
        plan: RunPlan,
        arrays: Mapping[str, DeviceArray],
        read_back: ReadBack,
    ) -> None:
        self._device = device
        self._engines = engines
        self._plan = plan
        self._arrays = arrays
        self._read_back = read_back
        self._made: dict[Hashable, Program] = {}
        self._drafts: dict[tuple[str, bool], Program] = {}
        sizes, geometry = plan.sizes, plan.geometry
        self._sizes = {
            "requests": sizes.requests,
            "guidance": sizes.guidance,
            "uniform_capacity": sizes.uniform_capacity,
            "vocabulary": sizes.vocabulary,
            "prompt": geometry.prompt_length,
            "known_capacity": sizes.known_capacity,
            "kept_capacity": sizes.kept_capacity,
            "image_tokens": sizes.image_tokens,
            "window": sizes.window,
            "nodes": sizes.nodes,
            "longest_path": sizes.longest_path,
            "code_dim": geometry.code_dim,
            "neighbours": plan.neighbours,
            "heads": geometry.heads,
            "capacity": geometry.capacity,
            "embedding_bytes": array_bytes((geometry.hidden,), plan.dtype(TARGET, "embeds")),
        }

    @cached_property
    def encode_prompt(self) -> Program:
        """The prompt's embeddings and mask."""
        inputs = {
            tensor.name: self._arrays[f"prompt.{tensor.name}"]
            for tensor in self._plan.manifest.graphs[ENCODE_PROMPT].inputs
        }
        outputs = {name: self._arrays[name] for name in ("prompt_embeds", "prompt_mask")}
        return (self._enqueue(ENCODE_PROMPT, inputs, outputs),)

    @cached_property
    def prefill(self) -> Program:
        """The target over the prompt, and the first roots; the host uploads positions and ancestors."""
        P = self._plan.geometry.prompt_length
        return (
            self._target(P, self._arrays["prompt_embeds"]),
            self._launch(table.BEGIN, {"rows": P, "logits": self._logits(P)}),
            self._commit_target(P, kept=False),
            *self.read,
        )

    def propose(self, trees: TreeNames, *, first: bool, plain: bool, similarity: bool) -> Program:
        """Draft and decide.

        Args:
            trees: those that are drafted.
            first: whether the drafter consumes the prompt.
            plain: whether a request decodes without drafting.
            similarity: whether a request decides by the likeness of paths.

        """
        key = (trees, first, plain, similarity)
        if key not in self._made:
            drafts = [call for tree in trees for call in self.draft(tree, first=first)]
            self._made[key] = (*drafts, *self.decide(plain=plain, similarity=similarity), *self.read)
        return self._made[key]

    def decide(self, *, plain: bool, similarity: bool) -> Program:
        """Decide, once all trees are drafted; arguments as in :meth:`propose`."""
        key = ("decide", plain, similarity)
        if key not in self._made:
            before = [table.PROPOSE_ROOT] * plain + [table.SIMILARITY] * similarity
            self._made[key] = tuple(self._launch(kernel) for kernel in (*before, table.DECIDE))
        return self._made[key]

    @cached_property
    def skip(self) -> Program:
        """Take the chosen paths unverified."""
        return (self._launch(table.SKIP),)

    def verify(self, *, chain: bool) -> Program:
        """Run the target, walk the trees, keep what survives."""
        key = chain
        if key not in self._made:
            T = self._plan.verify_rows(chain=chain)
            embeds = self._rows("embeds", T)
            inputs: dict[str, Argument] = {
                "embeds": embeds,
                "positions": self._rows("positions", T),
                "ancestors": self._ancestors(T),
                "rows": T,
            }
            self._made[key] = (
                self._launch(table.TARGET_INPUTS, inputs, grid=self._spread),
                self._target(T, embeds),
                self._launch(table.ACCEPT, {"rows": T, "logits": self._logits(T)}),
                self._commit_target(T, kept=True),
            )
        return self._made[key]

    @cached_property
    def read(self) -> Program:
        """Copy to pinned memory what the host looks at."""
        return (
            Copy(self._read_back.counters, self._arrays["counters"]),
            Copy(self._read_back.known, self._arrays["known"]),
        )

    @cached_property
    def read_history(self) -> Program:
        """Copy to pinned memory what the host looks at once an image was decoded as one graph."""
        if self._read_back.history is None:
            raise ValueError("there is no pinned memory for a history in this session")
        return (*self.read, Copy(self._read_back.history, self._arrays["history"]))

    def route_draft(self, tree: str, drafts: Condition) -> Launch:
        """Set whether any request drafts a tree now."""
        number = self._plan.shape.trees.index(tree)
        return self._launch(table.ROUTE_DRAFT, {"drafts": drafts, "tree": number}, grid=(1, 1))

    def route_step(self, skips: Condition, verifies: Condition) -> Launch:
        """Set whether any request skips, and how requests verify: 0 without a chain, 1 with one, 2 not."""
        return self._launch(table.ROUTE_STEP, {"skips": skips, "verifies": verifies}, grid=(1, 1))

    def end_step(self, running: Condition) -> Launch:
        """Keep what a step came to, and set whether another one follows."""
        return self._launch(table.END_STEP, {"running": running}, grid=(1, 1))

    def draft(self, tree: str, *, first: bool) -> Program:
        """One tree's drafting; the first one takes the prompt's features."""
        key = (tree, first)
        if key not in self._drafts:
            self._drafts[key] = tuple(self._draft_calls(tree, first=first))
        return self._drafts[key]

    def _draft_calls(self, tree: str, *, first: bool) -> Iterator[Call]:
        """Inputs, engine, KV rows, tree."""
        arrays, plan, graph = self._arrays, self._plan, draft_tree_graph(tree)
        number = plan.shape.trees.index(tree)
        A = plan.geometry.prompt_length if first else plan.sizes.draft_capacity
        shape = plan.trees[tree]
        N = shape.nodes
        R = plan.shape.requests
        features = self._rows("features" if first else "draft_features", A)
        inputs = {
            "features": features,
            "tokens": self._rows("draft_tokens", A),
            "root": arrays["root"],
            "positions": self._rows("draft_positions", A),
            "count": arrays["count"],
            "past_length": arrays["draft_past_length"],
        }
        feature_bytes = 0 if first else plan.sizes.feature_bytes
        yield self._launch(
            table.DRAFT_INPUTS, {**inputs, "rows": A, "tree": number, "feature_bytes": feature_bytes}
        )
        noise = {}
        if shape.coupled:
            noise["noise"] = arrays["noise"].leading((R, shape.levels, plan.geometry.vocabulary))
            yield self._launch(table.NOISE, {**noise, "levels": shape.levels}, grid=self._spread)
        settings = {
            "cfg_scale": arrays["draft_cfg_scale"],
            "temperature": arrays["temperature"],
            "top_p": arrays["top_p"],
        }
        cache = arrays["draft_cache"]
        kinds = list(enumerate(drafter_caches(plan.manifest.drafter_layers)))
        past = {f"past_{kind}": cache.part(place) for place, kind in kinds}
        new = arrays["draft_new"].leading((*cache.shape[:3], A, cache.shape[-1]))
        drafted = {
            "tree_tokens": arrays["drafted_tokens"].leading((R, N)),
            "parents": arrays["drafted_parents"].leading((R, N)),
            "depth": arrays["drafted_depth"].leading((R, N)),
            "ancestors": arrays["drafted_ancestors"].leading((R, N, N)),
            "scores": arrays["drafted_scores"].leading((R, N)),
        }
        outputs = {**drafted, **{f"new_{kind}": new.part(place) for place, kind in kinds}}
        yield self._enqueue(graph, {**inputs, **settings, **noise, **past}, outputs)
        yield self._commit(new, cache, rows=A, end=Counter.DRAFTER_ROWS, count=Counter.DRAFTED)
        by_parameter = {f"drafted_{name.removeprefix('tree_')}": array for name, array in drafted.items()}
        yield self._launch(table.PROPOSE, {**by_parameter, "tree": number, "drafted_nodes": N})

    def _target(self, T: int, embeds: DeviceArray) -> Call:
        arrays, cache = self._arrays, self._arrays["target_cache"]
        new = self._target_new(T)
        kinds = list(enumerate(target_caches(self._plan.geometry.layers)))
        inputs = {
            "embeds": embeds,
            "positions": self._rows("positions", T),
            "ancestors": self._ancestors(T),
            "past_length": arrays["past_length"],
            "prompt_mask": arrays["prompt_mask"],
            "cfg_scale": arrays["cfg_scale"],
            **{f"past_{kind}": cache.part(place) for place, kind in kinds},
        }
        outputs = {
            "logits": self._logits(T),
            "features": self._rows("features", T),
            **{f"new_{kind}": new.part(place) for place, kind in kinds},
        }
        return self._enqueue(TARGET, inputs, outputs)

    def _commit_target(self, T: int, *, kept: bool) -> Call:
        """Keep rows of the last target pass: those in ``kept``, with their features, or the first ones."""
        return self._commit(
            self._target_new(T),
            self._arrays["target_cache"],
            rows=T,
            end=Counter.TARGET_ROWS,
            count=Counter.KEPT,
            kept_capacity=self._plan.sizes.kept_capacity if kept else 0,
            feature_bytes=self._plan.sizes.feature_bytes if kept else 0,
        )

    def _commit(
        self,
        new: DeviceArray,
        cache: DeviceArray,
        *,
        rows: int,
        end: Counter,
        count: Counter,
        kept_capacity: int = 0,
        feature_bytes: int = 0,
    ) -> Launch:
        tensors = cache.shape[0]
        given: dict[str, Argument] = {
            "new_rows": new,
            "cache": cache,
            "features": self._rows("features", rows) if feature_bytes else self._arrays["features"],
            "new_stride": new.nbytes // tensors,
            "cache_stride": cache.nbytes // tensors,
            "tensors": tensors,
            "rows": rows,
            "row_bytes": array_bytes(cache.shape[-1:], cache.dtype),
            "kept_capacity": kept_capacity,
            "feature_bytes": feature_bytes,
            "end_column": int(end),
            "count_column": int(count),
        }
        return self._launch(table.COMMIT, given, grid=self._spread)

    def _launch(
        self, kernel: Kernel, given: Mapping[str, Argument] = {}, *, grid: tuple[int, int] | None = None
    ) -> Launch:
        """Launch a kernel, one block per request; what is not given is the state, or size, of that name."""
        arguments: list[Argument] = []
        for parameter in kernel.parameters:
            held: Mapping[str, Argument] = self._arrays if parameter.pointer else self._sizes
            value = given[parameter.name] if parameter.name in given else held[parameter.name]
            if isinstance(value, DeviceArray) and parameter.dtype == "uint8":
                value = value.raw  # kernels move bytes of whatever dtype the graphs have
            arguments.append(value)
        blocks = grid or (self._plan.shape.requests, 1)
        return Launch(kernel, tuple(arguments), blocks, self._device.threads_per_block)

    @property
    def _spread(self) -> tuple[int, int]:
        """A grid in which blocks share a request's work."""
        return self._plan.shape.requests, self._device.blocks_per_request

    def _enqueue(
        self, graph: str, inputs: Mapping[str, DeviceArray], outputs: Mapping[str, DeviceArray]
    ) -> Enqueue:
        scratch = self._arrays.get("scratch")
        return Enqueue(self._engines.execution(graph, inputs, outputs, scratch))

    def _rows(self, name: str, rows: int) -> DeviceArray:
        """An engine buffer ``[B, rows, ...]``."""
        array = self._arrays[name]
        return array.leading((array.shape[0], rows, *array.shape[2:]))

    def _ancestors(self, T: int) -> DeviceArray:
        return self._arrays["ancestors"].leading((self._plan.rows, T, T))

    def _logits(self, T: int) -> DeviceArray:
        return self._rows("logits", T)

    def _target_new(self, T: int) -> DeviceArray:
        cache = self._arrays["target_cache"]
        return self._arrays["target_new"].leading((*cache.shape[:3], T, cache.shape[-1]))
