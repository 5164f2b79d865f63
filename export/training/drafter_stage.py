"""Trains the EAGLE drafter on the target's own features and distributions.

Two things are done to the input features on purpose, since decoding does them too: some are replaced by
the drafter's own predictions (deeper levels of a draft tree see those), and some by features from a few
positions earlier (after a skipped verification the features are stale).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.errors import SettingsError
from vvs.export.drafter import Drafter
from vvs.export.llamagen import Target
from vvs.export.t5 import T5Encoder
from vvs.export.training.examples import ExampleSource, PromptRows

FEATURE_WEIGHT = 1.0
DISTRIBUTION_WEIGHT = 0.5
UNCONDITIONAL_SHARE = 0.25


@dataclass(frozen=True)
class FeatureMix:
    """How much of the drafter's training input is not the target's fresh features."""

    predicted: float = 0.3
    """Share of positions that see the drafter's own prediction."""
    stale: float = 0.1
    """Share of positions that see a feature from ``stale_shift`` or fewer positions earlier."""
    stale_shift: int = 4

    def __post_init__(self) -> None:
        if not (self.predicted >= 0 and self.stale >= 0 and self.predicted + self.stale <= 1):
            raise SettingsError(
                f"the shares of predicted ({self.predicted}) and stale ({self.stale}) features "
                "must not be negative, nor exceed 1 together"
            )
        if self.stale_shift < 1:
            raise SettingsError(f"stale_shift is {self.stale_shift}, but it must be at least 1")


class DrafterStage:
    """Learns to foresee the target's next feature."""

    name = "drafter"

    def __init__(
        self,
        drafter: Drafter,
        target: Target,
        source: ExampleSource,
        mix: FeatureMix,
        text_encoder: T5Encoder | None = None,
    ) -> None:
        self.drafter = drafter
        self.module: nn.Module = drafter
        self._target = target.eval().requires_grad_(False)
        self._source = source
        self._prompt_rows = PromptRows(self._target, text_encoder)
        self._mix = mix

    def losses(self, batch: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Both losses on one batch, over a plain and a mixed pass; ``agree`` is the top-1 agreement."""
        examples = self._source.draw(batch, rng)
        dropped = torch.from_numpy(rng.random(batch) < UNCONDITIONAL_SHARE)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                prompt = self._prompt_rows(examples.conditioning, dropped)
                features = self._target.whole_sequence(prompt, examples.tokens).float()
                logits = self._target.logits(features)
            next_tokens = self._next_tokens(examples.tokens)
            plain = self.drafter.whole_sequence(features[:, :-1], next_tokens)
            mixed_input = self._mixed(features[:, :-1], plain.detach(), rng)
            mixed = self.drafter.whole_sequence(mixed_input, next_tokens)
            first = self._compare(plain, features[:, 1:], logits[:, 1:])
            second = self._compare(mixed, features[:, 1:], logits[:, 1:])
        return {name: (first[name] + second[name]) / 2 for name in first}

    def _next_tokens(self, tokens: Tensor) -> Tensor:
        """Tokens ``[R, P + M - 1]`` paired with features: zeros for the prompt, then the image's."""
        prompt = self._target.config.geometry.prompt_length
        return torch.cat([tokens.new_zeros(len(tokens), prompt - 1), tokens], dim=1)

    def _mixed(self, features: Tensor, predicted: Tensor, rng: np.random.Generator) -> Tensor:
        """Swap some image rows of ``features [R, L, D]`` for predictions of them or for stale ones."""
        prompt = self._target.config.geometry.prompt_length
        draw = torch.from_numpy(rng.random(features.shape[:2], dtype=np.float32))
        draw[:, :prompt] = 1.0
        foreseen = torch.cat([features[:, :1], predicted[:, :-1].to(features.dtype)], dim=1)
        shift = int(rng.integers(1, self._mix.stale_shift + 1))
        stale = torch.cat([features[:, :1].expand(-1, shift, -1), features[:, :-shift]], dim=1)
        mixed = torch.where((draw < self._mix.predicted).unsqueeze(-1), foreseen, features)
        old = draw > 1 - self._mix.stale
        old[:, :prompt] = False
        return torch.where(old.unsqueeze(-1), stale, mixed)

    def _compare(self, predicted: Tensor, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Losses over the rows that predict an image token."""
        first = self._target.config.geometry.prompt_length - 1
        ours = self._target.logits(predicted[:, first:]).flatten(0, 1)
        theirs = logits[:, first:].flatten(0, 1)
        distance = F.smooth_l1_loss(predicted[:, first:].float(), features[:, first:])
        divergence = F.cross_entropy(ours, theirs.softmax(-1))
        loss = FEATURE_WEIGHT * distance + DISTRIBUTION_WEIGHT * divergence
        agree = (ours.argmax(-1) == theirs.argmax(-1)).float().mean()
        return {"loss": loss, "feature": distance, "distribution": divergence, "agree": agree}
