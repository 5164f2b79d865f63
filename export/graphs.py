"""The graphs of a bundle as traceable modules: exactly the I/O contract that runtimes rely on.

Every graph knows its name, its inputs and outputs, and how to draw valid random inputs, so that tracing,
checking and describing a graph all use one source. Shapes are fixed numbers or the symbols

- ``R`` requests, ``B`` engine rows (``B = g R`` with g guidance rows; conditional rows first),
- ``T`` target rows, ``A`` drafter rows.

Nothing here knows ONNX.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vvs.export.draft_tree import DraftTree
from vvs.export.drafter import Drafter
from vvs.export.layers import Rows, dtype_of, visibility_bias
from vvs.export.llamagen import CaptionConditioning, ClassConditioning, Target, WordConditioning
from vvs.export.t5 import T5Encoder
from vvs.export.vq import VQTokenizer
from vvs.geometry import Geometry
from vvs.manifest import (
    DECODE_IMAGE,
    ENCODE_PROMPT,
    TARGET,
    TensorSpec,
    draft_tree_graph,
    drafter_caches,
    target_caches,
)
from vvs.tree_shape import TreeShape

DTYPE_NAMES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.bool: "bool",
}

Tensors = tuple[Tensor, ...]


def spec(name: str, dtype: torch.dtype, *shape: int | str) -> TensorSpec:
    """A tensor's description by its torch dtype."""
    return TensorSpec(name, DTYPE_NAMES[dtype], shape)


class Graph(nn.Module):
    """One graph of a bundle."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def sample(self, requests: int, rows: int, rng: torch.Generator) -> Tensors:
        """Draw valid random inputs for ``requests`` requests and ``rows`` target or drafter rows."""
        raise NotImplementedError


def random_mask(rows: int, length: int, rng: torch.Generator) -> Tensor:
    """Right-padded masks ``[rows, length]`` of at least one valid place."""
    count = torch.randint(1, length + 1, (rows, 1), generator=rng)
    return torch.arange(length) < count


def random_ancestors(rows: int, nodes: int, rng: torch.Generator) -> Tensor:
    """Ancestors ``[rows, nodes, nodes]`` of random trees, self included."""
    ancestors = torch.eye(nodes, dtype=torch.bool).repeat(rows, 1, 1)
    for node in range(1, nodes):
        parents = torch.randint(0, node, (rows,), generator=rng)
        ancestors[:, node] |= ancestors[torch.arange(rows), parents]
    return ancestors


def gumbel_noise(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Standard Gumbel numbers."""
    return -torch.rand(shape, generator=rng).clamp(min=1e-30).log().neg().log()


class EncodePromptGraph(Graph):
    """Conditioning to prompt rows, conditional and unconditional; with a text encoder, captions' tokens."""

    name = ENCODE_PROMPT

    def __init__(self, target: Target, text_encoder: T5Encoder | None = None) -> None:
        super().__init__()
        geometry, dtype = target.config.geometry, dtype_of(target)
        self.prompt = target.model.cls_embedding
        self.text_encoder = text_encoder
        self.guidance_rows = geometry.guidance_rows
        P, D = geometry.prompt_length, geometry.hidden
        mask = spec("mask", torch.bool, "R", P)
        self.ids = 0
        """Ids that may be asked for, where prompts are ids."""
        match target.config.conditioning:
            case WordConditioning(words):
                self.ids = words
                self.inputs = (spec("token_ids", torch.int64, "R", P), mask)
            case CaptionConditioning(caption_dim) if text_encoder is None:
                self.inputs = (spec("hidden_states", torch.float32, "R", P, caption_dim), mask)
            case CaptionConditioning():
                assert text_encoder is not None  # noqa: S101 - for the type checker
                self.ids = text_encoder.config.vocabulary
                self.inputs = (spec("token_ids", torch.int64, "R", P), mask)
            case ClassConditioning(classes):
                self.ids = classes
                self.inputs = (spec("class_ids", torch.int64, "R"),)
        self.outputs = (spec("prompt_embeds", dtype, "B", P, D), spec("prompt_mask", torch.bool, "B", P))

    def forward(self, *conditioning: Tensor) -> Tensors:
        """Prompt rows and their mask."""
        if self.text_encoder is not None:
            token_ids, mask = conditioning
            conditioning = (self.text_encoder(token_ids, mask), mask)
        dtype = dtype_of(self.prompt)
        prepared = [c.to(dtype) if c.is_floating_point() else c for c in conditioning]
        prompt = self.prompt(*prepared, self.guidance_rows)
        return prompt.embeds, prompt.mask

    def sample(self, requests: int, rows: int, rng: torch.Generator) -> Tensors:
        """Random prompts of random lengths."""
        first, *masks = self.inputs
        shape = (requests, *(int(size) for size in first.shape[1:]))
        drawn = (
            torch.randint(0, self.ids, shape, generator=rng)
            if first.dtype == "int64"
            else torch.randn(shape, generator=rng)
        )
        return (drawn, *(random_mask(requests, int(mask.shape[1]), rng) for mask in masks))


class TargetGraph(Graph):
    """The target over cached rows: guided logits, features and new rows. Writes no cache."""

    name = TARGET

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self.geometry = geometry = target.config.geometry
        dtype = dtype_of(target)
        P, D, S = geometry.prompt_length, geometry.hidden, geometry.capacity
        H, Dh = geometry.heads, geometry.head_dim
        names = target_caches(geometry.layers)
        self.inputs = (
            spec("embeds", dtype, "B", "T", D),
            spec("positions", torch.int64, "B", "T"),
            spec("ancestors", torch.bool, "B", "T", "T"),
            spec("past_length", torch.int64, "B"),
            spec("prompt_mask", torch.bool, "B", P),
            spec("cfg_scale", torch.float32, "R"),
            *(spec(f"past_{name}", dtype, "B", H, S, Dh) for name in names),
        )
        self.outputs = (
            spec("logits", torch.float32, "R", "T", geometry.vocabulary),
            spec("features", dtype, "B", "T", D),
            *(spec(f"new_{name}", dtype, "B", H, "T", Dh) for name in names),
        )

    def forward(
        self,
        embeds: Tensor,
        positions: Tensor,
        ancestors: Tensor,
        past_length: Tensor,
        prompt_mask: Tensor,
        cfg_scale: Tensor,
        *past: Tensor,
    ) -> Tensors:
        """Logits, features, then key and value rows of every layer."""
        capacity, prompt_length = past[0].shape[2], prompt_mask.shape[1]
        cached = torch.arange(capacity, device=embeds.device) < past_length.unsqueeze(1)
        prompt, image = torch.split(cached, [prompt_length, capacity - prompt_length], dim=1)
        in_past = torch.cat([prompt & prompt_mask, image], dim=1).unsqueeze(1)
        visible = torch.cat([in_past.expand(-1, ancestors.shape[1], -1), ancestors], dim=2)
        rows = [Rows(*pair) for pair in zip(past[::2], past[1::2], strict=True)]
        out = self.target(embeds, positions, visibility_bias(visible), rows)
        logits = self.target.guided_logits(out.features, cfg_scale)
        return (logits, out.features, *(part for new in out.rows for part in new))

    def sample(self, requests: int, rows: int, rng: torch.Generator) -> Tensors:
        """Random trees of real token embeddings over random caches."""
        geometry = self.geometry
        B, S, P = requests * geometry.guidance_rows, geometry.capacity, geometry.prompt_length
        tokens = torch.randint(0, geometry.vocabulary, (B, rows), generator=rng)
        most = max(P + 1, P + geometry.image_tokens - rows)
        past_length = torch.randint(P, most, (B,), generator=rng)
        ancestors = random_ancestors(B, rows, rng)
        dtype = dtype_of(self.target)
        shape = (B, geometry.heads, S, geometry.head_dim)
        return (
            self.target.model.embed_tokens(tokens).detach(),
            past_length.unsqueeze(1) + ancestors.long().sum(-1) - 1,
            ancestors,
            past_length,
            random_mask(B, P, rng).flip(1),
            1 + 3 * torch.rand(requests, generator=rng),
            *(torch.randn(shape, generator=rng).to(dtype) for _ in range(2 * geometry.layers)),
        )


class DraftTreeGraph(Graph):
    """A whole draft tree of one shape."""

    def __init__(self, drafter: Drafter, target: Target, shape: TreeShape, tree: str) -> None:
        super().__init__()
        self.name = draft_tree_graph(tree)
        self.tree = DraftTree(drafter, target, shape)
        self.feature_scale = target.model.norm.weight.detach()
        self.geometry = geometry = drafter.config.geometry
        self.drafter_layers = drafter.config.layers
        names = drafter_caches(self.drafter_layers)
        dtype = dtype_of(target)
        D, S, H, Dh, N = geometry.hidden, geometry.capacity, geometry.heads, geometry.head_dim, shape.nodes
        self.inputs = (
            spec("features", dtype, "B", "A", D),
            spec("tokens", torch.int64, "B", "A"),
            spec("root", torch.int64, "R"),
            spec("positions", torch.int64, "B", "A"),
            spec("count", torch.int64, "B"),
            spec("past_length", torch.int64, "B"),
            spec("cfg_scale", torch.float32, "R"),
            spec("temperature", torch.float32, "R"),
            spec("top_p", torch.float32, "R"),
            *([spec("noise", torch.float32, "R", shape.levels, geometry.vocabulary)] * shape.coupled),
            *(spec(f"past_{name}", dtype, "B", H, S, Dh) for name in names),
        )
        self.outputs = (
            spec("tree_tokens", torch.int64, "R", N),
            spec("parents", torch.int64, "R", N),
            spec("depth", torch.int64, "R", N),
            spec("ancestors", torch.bool, "R", N, N),
            spec("scores", torch.float32, "R", N),
            *(spec(f"new_{name}", dtype, "B", H, "A", Dh) for name in names),
        )

    def forward(self, *inputs: Tensor) -> Tensors:
        """The tree, then the consumed key and value rows of every layer."""
        out: Tensors = self.tree(*inputs)
        return out

    def sample(self, requests: int, rows: int, rng: torch.Generator) -> Tensors:
        """Random features; some requests want a nucleus."""
        geometry = self.geometry
        g, P, D = geometry.guidance_rows, geometry.prompt_length, geometry.hidden
        B, shape = requests * g, self.tree.shape
        dtype = self.feature_scale.dtype

        def both(values: Tensor) -> Tensor:
            return torch.cat([values] * g)

        tokens = torch.randint(0, geometry.vocabulary, (requests, rows), generator=rng)
        count = torch.randint(1, rows + 1, (requests,), generator=rng)
        past_length = torch.randint(P, max(P + 1, geometry.capacity - rows - 8), (requests,), generator=rng)
        cache = (B, geometry.heads, geometry.capacity, geometry.head_dim)
        return (
            torch.randn(B, rows, D, generator=rng).to(dtype) * self.feature_scale,
            both(tokens),
            tokens.gather(1, (count - 1).unsqueeze(1)).squeeze(1),
            both(past_length.unsqueeze(1) + torch.arange(1, rows + 1)),
            both(count),
            both(past_length),
            1 + 3 * torch.rand(requests, generator=rng),
            0.5 + torch.rand(requests, generator=rng),
            torch.ones(requests) - 0.02 * torch.randint(0, 2, (requests,), generator=rng),
            *(gumbel_noise((requests, shape.levels, geometry.vocabulary), rng) for _ in range(shape.coupled)),
            *(torch.randn(cache, generator=rng).to(dtype) for _ in range(2 * self.drafter_layers)),
        )


class DecodeImageGraph(Graph):
    """Complete token grids to pixels."""

    name = DECODE_IMAGE

    def __init__(self, vq: VQTokenizer, geometry: Geometry) -> None:
        super().__init__()
        self.vq = vq
        self.grid = geometry.grid
        self.vocabulary = geometry.vocabulary
        size = geometry.image_size
        self.inputs = (spec("tokens", torch.int64, "R", geometry.image_tokens),)
        self.outputs = (spec("image", torch.float32, "R", 3, size, size),)

    def forward(self, tokens: Tensor) -> Tensors:
        """Pixels in [-1, 1]."""
        image = self.vq.decode(tokens.reshape(-1, self.grid, self.grid))
        return (image.float().clamp(-1, 1),)

    def sample(self, requests: int, rows: int, rng: torch.Generator) -> Tensors:
        """Random tokens."""
        shape = (requests, self.grid * self.grid)
        return (torch.randint(0, self.vocabulary, shape, generator=rng),)


def as_array(tensor: Tensor) -> NDArray[Any]:
    """A tensor as a numpy array; numpy lacks bfloat16, so that becomes float32, which holds it exactly."""
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array: NDArray[Any] = wide.detach().cpu().numpy()
    return array


def named(specs: tuple[TensorSpec, ...], values: Tensors) -> dict[str, NDArray[Any]]:
    """Tensors by the names of their descriptions, as numpy arrays."""
    return {s.name: as_array(v) for s, v in zip(specs, values, strict=True)}
