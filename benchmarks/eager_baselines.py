"""Baselines: what a user would run instead, in eager PyTorch on the same weights.

:class:`EagerAR` is plain AR decoding as one would write it, with a preallocated KV cache, and the same
compiled. :class:`EagerVVS` is structured like published research code: caches grow by concatenation, a tree
is judged node by node in Python with PyTorch operations. Both decode one request at a time and share no code
with the runtime's loop, which is the point of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vvs.acceptance import Exact
from vvs.config import GenerationConfig
from vvs.engine import Conditioning
from vvs.errors import SettingsError
from vvs.export.graphs import DraftTreeGraph, EncodePromptGraph
from vvs.export.layers import Rows, prompt_visibility, visibility_bias
from vvs.export.llamagen import Target
from vvs.export.model_set import ModelSet
from vvs.selection import RandomPath
from vvs.skipping import Never, PlannedPolicy, may_skip
from vvs.statistics import Statistics, StepKind, StepTimes

Encode = Callable[[str], Conditioning]
"""Turns a prompt into the prompt encoder's inputs ``[1, ...]``."""
UNTIMED = StepTimes({}, 0.0, 0.0)


class _Pass(NamedTuple):
    """What one target pass returns."""

    logits: Tensor  # [T, V] guided
    features: Tensor  # [g, T, D]
    rows: list[Rows]  # of every layer, [g, H, T, Dh]


@dataclass
class _Model:
    """A target with what both baselines do with it."""

    models: ModelSet
    encode: Encode
    cfg_scale: float

    def __post_init__(self) -> None:
        self.target: Target = self.models.target.eval()
        self.encoder = EncodePromptGraph(self.target, self.models.text_encoder)
        self.forward: Callable[..., Any] = self.target.forward

    def prompt(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Prompt rows ``[g, P, D]`` and their mask ``[g, P]``."""
        given = self.encode(prompt)
        embeds, mask = self.encoder(*(torch.from_numpy(given[t.name]) for t in self.encoder.inputs))
        return embeds, mask

    def run(self, embeds: Tensor, positions: Tensor, visible: Tensor, past: list[Rows]) -> _Pass:
        """One pass over ``embeds [g, T, D]``; ``visible [g, T, S + T]`` covers cached and new rows."""
        g = len(embeds)
        out = self.forward(embeds, positions.expand(g, -1), visibility_bias(visible), past)
        logits = self.target.guided_logits(out.features, torch.tensor([self.cfg_scale]))
        return _Pass(logits[0], out.features, out.rows)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings ``[g, T, D]`` of tokens ``[T]``."""
        g = self.models.geometry.guidance_rows
        rows: Tensor = self.target.model.embed_tokens(tokens).expand(g, -1, -1)
        return rows

    def paint(self, tokens: list[int]) -> None:
        """Decode the image, as a user would."""
        grid = self.models.geometry.grid
        self.models.vq.decode(torch.tensor(tokens[: grid * grid]).reshape(1, grid, grid))


def _processed(logits: Tensor, config: GenerationConfig) -> Tensor:
    """Probabilities ``[V]`` after temperature and top-k."""
    logits = logits / config.sampling.temperature
    if config.sampling.top_k:
        least = logits.topk(config.sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    return logits.softmax(-1)


def _require(config: GenerationConfig) -> None:
    if config.sampling.greedy or config.sampling.top_p < 1:
        raise SettingsError("the eager baselines sample with a temperature and top-k only")


class EagerAR:
    """Plain AR decoding with a preallocated KV cache.

    Args:
        models: a model set.
        encode: turns a prompt into the prompt encoder's inputs.
        config: its sampling and guidance; nothing is drafted.
        compiled: let torch.compile have the target; passes then see the whole cache, so that shapes stay.

    """

    def __init__(
        self, models: ModelSet, encode: Encode, config: GenerationConfig, *, compiled: bool = False
    ) -> None:
        _require(config)
        self._config = config
        self._model = _Model(models, encode, config.cfg_scale)
        self._compiled = compiled
        if compiled:
            self._model.forward = torch.compile(self._model.target.forward)

    @property
    def label(self) -> str:
        """What it is."""
        return f"{'torch.compile' if self._compiled else 'eager PyTorch'} ar"

    @property
    def config(self) -> dict[str, Any]:
        """Every setting."""
        return self._config.describe()

    @property
    def foreign(self) -> bool:
        """Yes."""
        return True

    def run(self, prompts: Sequence[str], seeds: Sequence[int]) -> tuple[Statistics, ...]:
        """Draw the prompts one after another."""
        return tuple(self.draw(prompt, seed)[1] for prompt, seed in zip(prompts, seeds, strict=True))

    @torch.inference_mode()
    def draw(self, prompt: str, seed: int) -> tuple[list[int], Statistics]:
        """Image tokens of one prompt, and what they cost."""
        geometry, model = self._model.models.geometry, self._model
        random = torch.Generator().manual_seed(seed)
        statistics = Statistics(geometry.image_tokens)
        embeds, mask = model.prompt(prompt)
        g, P, _ = embeds.shape
        shape = (g, geometry.heads, geometry.capacity, geometry.head_dim)
        cache = [Rows(torch.zeros(shape), torch.zeros(shape)) for _ in range(geometry.layers)]
        visible = torch.zeros(g, geometry.capacity, dtype=torch.bool)
        step = model.run(embeds, torch.arange(P)[None], prompt_visibility(mask), self._past(cache, 0))
        statistics.count_prefill(UNTIMED)
        visible[:, :P] = mask
        length, tokens = P, list[int]()
        while True:
            for kept, new in zip(cache, step.rows, strict=True):
                for memory, rows in zip(kept, new, strict=True):
                    memory[:, :, length - rows.shape[2] : length] = rows
            tokens.append(
                int(torch.multinomial(_processed(step.logits[-1], self._config), 1, generator=random))
            )
            if len(tokens) == geometry.image_tokens:
                break
            seen = visible if self._compiled else visible[:, :length]
            row = torch.cat([seen, torch.ones(g, 1, dtype=torch.bool)], dim=1)[:, None]
            embedded = model.embed(torch.tensor(tokens[-1:]))
            step = model.run(embedded, torch.tensor([[length]]), row, self._past(cache, length))
            statistics.count_step(StepKind.VERIFY, 0, UNTIMED)
            visible[:, length] = True
            length += 1
        model.paint(tokens)
        return tokens, statistics

    def _past(self, cache: list[Rows], length: int) -> list[Rows]:
        """What a pass sees: the rows that are filled, or, compiled, the whole cache."""
        if self._compiled and length:
            return cache
        return [Rows(rows.keys[:, :, :length], rows.values[:, :, :length]) for rows in cache]


class EagerVVS:
    """EAGLE and VVS over the exact rule, with caches that grow by concatenation.

    Args:
        models: a model set with the configuration's tree.
        encode: turns a prompt into the prompt encoder's inputs.
        config: the exact rule, and a policy that skips by a step's number, or never.

    """

    def __init__(self, models: ModelSet, encode: Encode, config: GenerationConfig) -> None:
        _require(config)
        if config.tree is None or not isinstance(config.skipping, Never | PlannedPolicy):
            raise SettingsError("the eager VVS baseline needs a tree, and skips by a step's number or never")
        if config.skip_tree is not None or config.selector != RandomPath() or config.acceptance != Exact():
            raise SettingsError(
                "the eager VVS baseline knows the exact rule, one tree and the path selector random only"
            )
        self._config = config
        self._model = _Model(models, encode, config.cfg_scale)
        shape = models.trees[config.tree]
        self._drafter = DraftTreeGraph(models.drafter.eval(), models.target, shape, config.tree)

    @property
    def label(self) -> str:
        """What it is."""
        return f"eager PyTorch {'eagle' if isinstance(self._config.skipping, Never) else 'vvs'}"

    @property
    def config(self) -> dict[str, Any]:
        """Every setting."""
        return self._config.describe()

    @property
    def foreign(self) -> bool:
        """Yes."""
        return True

    def run(self, prompts: Sequence[str], seeds: Sequence[int]) -> tuple[Statistics, ...]:
        """Draw the prompts one after another."""
        return tuple(self.draw(prompt, seed)[1] for prompt, seed in zip(prompts, seeds, strict=True))

    @torch.inference_mode()
    def draw(self, prompt: str, seed: int) -> tuple[list[int], Statistics]:
        """Image tokens of one prompt, and what they cost."""
        state = _Growing(self._model, self._drafter, self._config, prompt, seed)
        while len(state.tokens) < state.statistics.image_tokens:
            state.step()
        self._model.paint(state.tokens)
        return state.tokens[: state.statistics.image_tokens], state.statistics


class _Tree(NamedTuple):
    """A drafted tree of one request."""

    tokens: list[int]
    parents: list[int]
    depth: Tensor  # [N]
    ancestors: Tensor  # [N, N]

    def paths(self) -> list[list[int]]:
        """Nodes from the root to every leaf, in the order of the leaves' paths."""
        inner = set(self.parents)
        paths = []
        for leaf in (node for node in range(len(self.tokens)) if node not in inner):
            path = [leaf]
            while self.parents[path[0]] >= 0:
                path.insert(0, self.parents[path[0]])
            paths.append(path)
        return sorted(paths)


class _Growing:
    """One picture under way; every cache is a tensor that is concatenated to."""

    def __init__(
        self, model: _Model, drafter: DraftTreeGraph, config: GenerationConfig, prompt: str, seed: int
    ) -> None:
        self.model, self.drafter, self.config = model, drafter, config
        self.random = np.random.default_rng(seed)
        self.statistics = Statistics(model.models.geometry.image_tokens)
        embeds, mask = model.prompt(prompt)
        g, P, _ = embeds.shape
        geometry = model.models.geometry
        nothing = torch.zeros(g, geometry.heads, 0, geometry.head_dim)
        empty = [Rows(nothing, nothing) for _ in range(geometry.layers)]
        first = model.run(embeds, torch.arange(P)[None], prompt_visibility(mask), empty)
        self.statistics.count_prefill(UNTIMED)
        self.cache, self.visible = first.rows, mask
        self.draft_cache = [nothing] * (2 * drafter.drafter_layers)
        self.tokens = [self._sample(_processed(first.logits[-1], config))]
        self.chain: list[int] = []
        self.features = first.features
        self.pending = (first.features, [*[0] * (P - 1), self.tokens[0]])

    def _sample(self, p: Tensor) -> int:
        cumulative = p.cumsum(0)
        token = int(torch.searchsorted(cumulative, float(self.random.random()) * cumulative[-1], right=True))
        return min(token, len(p) - 1)

    def step(self) -> None:
        """Draft, then verify or skip."""
        tree = self._draft()
        skipping = self.config.skipping
        wants = isinstance(skipping, PlannedPolicy) and skipping.plans(self.statistics.steps)
        if not (wants and may_skip(len(self.tokens) - 1) and self._skip(tree)):
            self._verify(tree)

    def _draft(self) -> _Tree:
        features, tokens = self.pending
        g, A = features.shape[0], len(tokens)
        past = self.draft_cache[0].shape[2]
        sampling = self.config.sampling
        out = self.drafter(
            features,
            torch.tensor([tokens]).expand(g, -1),
            torch.tensor(tokens[-1:]),
            (past + 1 + torch.arange(A))[None].expand(g, -1),
            torch.full((g,), A),
            torch.full((g,), past),
            torch.tensor([self.config.draft_cfg_scale]),
            torch.tensor([sampling.temperature]),
            torch.tensor([sampling.top_p]),
            *self.draft_cache,
        )
        drafted, parents, depth, ancestors, _, *new = out
        self.draft_cache = [
            torch.cat(stretches, dim=2) for stretches in zip(self.draft_cache, new, strict=True)
        ]
        return _Tree(drafted[0].tolist(), parents[0].tolist(), depth[0], ancestors[0])

    def _skip(self, tree: _Tree) -> bool:
        """Take a random path, truncated to the mean length; False if nothing would be taken."""
        paths = tree.paths()
        path = paths[int(self.random.random() * len(paths))]
        length = min(len(path) - 1, sum(map(len, paths)) // len(paths) - 1)
        if not length:
            return False
        taken = [tree.tokens[node] for node in path[1 : length + 1]]
        self.chain += [self.tokens[-1], *taken[:-1]]
        self.tokens += taken
        self.pending = (self.features[:, -length:], taken)
        self.statistics.count_step(StepKind.SKIP, length, UNTIMED)
        return True

    def _verify(self, tree: _Tree) -> None:
        chain, N = len(self.chain), len(tree.tokens)
        T = chain + N
        visible = torch.zeros(T, T, dtype=torch.bool)
        visible[:chain, :chain] = torch.ones(chain, chain, dtype=torch.bool).tril()
        visible[chain:, :chain] = True
        visible[chain:, chain:] = tree.ancestors
        g = len(self.visible)
        seen = torch.cat([self.visible[:, None].expand(-1, T, -1), visible.expand(g, -1, -1)], dim=2)
        root = self.visible.shape[1] + chain
        positions = torch.cat([torch.arange(root - chain, root), root + tree.depth])[None]
        embeds = self.model.embed(torch.tensor([*self.chain, *tree.tokens]))
        out = self.model.run(embeds, positions, seen, self.cache)
        nodes, residual = self._walk(tree, out.logits[chain:])
        kept = torch.tensor([*range(chain), *(chain + node for node in nodes)])
        self.cache = [
            Rows(*(torch.cat([old, new[:, :, kept]], dim=2) for old, new in zip(a, b, strict=True)))
            for a, b in zip(self.cache, out.rows, strict=True)
        ]
        self.visible = torch.cat([self.visible, torch.ones(g, len(kept), dtype=torch.bool)], dim=1)
        self.features = torch.cat([self.features, out.features[:, kept]], dim=1)
        new = [*(tree.tokens[node] for node in nodes[1:]), self._sample(residual)]
        self.tokens += new
        self.chain = []
        self.pending = (self.features[:, -len(new) :], new)
        self.statistics.count_step(StepKind.VERIFY, len(nodes) - 1, UNTIMED)

    def _walk(self, tree: _Tree, logits: Tensor) -> tuple[list[int], Tensor]:
        """Accept node by node; the nodes from the root on, and what is left of the last distribution."""
        nodes = [0]
        while True:
            p = _processed(logits[nodes[-1]], self.config)
            for child in (n for n, parent in enumerate(tree.parents) if parent == nodes[-1]):
                token = tree.tokens[child]
                if self.random.random() <= p[token] and p[token] > 0:
                    nodes.append(child)
                    break
                p[token] = 0
                p = p / p.sum()
            else:
                return nodes, p
