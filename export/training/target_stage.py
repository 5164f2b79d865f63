"""Trains the target: next-token prediction over tinted garments; prompts are dropped now and then."""

from collections.abc import Mapping

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.export.llamagen import Target
from vvs.export.training.examples import Examples, ExampleSource, PromptRows
from vvs.export.training.garments import Garments, describe, draw_colours, tint
from vvs.export.training.vocabulary import encode
from vvs.export.vq import VQTokenizer

PROMPT_DROP = 0.1


class GarmentExamples:
    """Draws batches: a garment, a colour, its tokens, and words that ask for it."""

    def __init__(self, data: Garments, vq: VQTokenizer, tokenizer: Tokenizer, prompt_length: int) -> None:
        self._data = data
        self._vq = vq.eval()
        self._tokenizer = tokenizer
        self._prompt_length = prompt_length

    def draw(self, batch: int, rng: np.random.Generator) -> Examples:
        """A random batch, each picture in a random colour."""
        picks = rng.integers(len(self._data), size=batch)
        labels = self._data.labels[torch.from_numpy(picks)].numpy()
        colours = draw_colours(labels, rng)
        prompts = [describe(int(c), int(g), rng) for c, g in zip(colours, labels, strict=True)]
        pixels = tint(self._data.grey[torch.from_numpy(picks)], torch.from_numpy(colours))
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            latents = self._vq.encode_latents(pixels)
        tokens = self._vq.quantize.nearest(latents.float()).flatten(1)
        return Examples(tokens, encode(self._tokenizer, prompts, self._prompt_length))


class TargetStage:
    """Learns to draw."""

    name = "target"

    def __init__(self, target: Target, source: ExampleSource) -> None:
        self.target = target
        self.module: nn.Module = target
        self._source = source
        self._prompt_rows = PromptRows(target)

    def losses(self, batch: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Mean negative log-likelihood (nats a token) of one batch."""
        examples = self._source.draw(batch, rng)
        dropped = torch.from_numpy(rng.random(batch) < PROMPT_DROP)
        return {"loss": self.negative_log_likelihood(examples, dropped)}

    def negative_log_likelihood(self, examples: Examples, dropped: Tensor) -> Tensor:
        """Nats a token."""
        with torch.autocast("cpu", torch.bfloat16):
            prompt = self._prompt_rows(examples.conditioning, dropped)
            features = self.target.whole_sequence(prompt, examples.tokens[:, :-1])
            first = self.target.config.geometry.prompt_length - 1
            logits = self.target.logits(features[:, first:])
        return F.cross_entropy(logits.flatten(0, 1), examples.tokens.flatten())
