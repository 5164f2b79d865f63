"""Examples: sequences of image tokens with the prompts that belong to them, and where they come from.

A prompt is what the ``encode_prompt`` graph takes, so training serves every family that can be exported.
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vvs.export.graphs import EncodePromptGraph
from vvs.export.llamagen import Prompt, Target


class Examples(NamedTuple):
    """One batch: image tokens ``[R, M]`` and the prompt encoder's inputs in order, each ``[R, ...]``."""

    tokens: Tensor
    conditioning: tuple[Tensor, ...]


class ExampleSource(Protocol):
    """Where batches come from."""

    def draw(self, batch: int, rng: np.random.Generator) -> Examples:
        """A batch, random by ``rng`` alone."""
        ...


class PromptRows(nn.Module):
    """Prompts to prompt rows, some of them made unconditional, as guidance needs it."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.graph = EncodePromptGraph(target)

    def forward(self, conditioning: tuple[Tensor, ...], dropped: Tensor) -> Prompt:
        """Prompt rows of R requests; those in ``dropped [R]`` bool get the unconditional rows."""
        embeds, mask = self.graph(*conditioning)
        if self.graph.guidance_rows == 1:
            return Prompt(embeds, mask)
        requests = len(dropped)
        conditional, unconditional = embeds[:requests], embeds[requests:]
        rows = torch.where(dropped.reshape(-1, 1, 1), unconditional, conditional)
        return Prompt(rows, mask[:requests])
