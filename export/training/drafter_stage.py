"""Trains the EAGLE drafter on the target's own features and distributions.

Two things are done to the input features on purpose, since decoding does them too: some are replaced by
the drafter's own predictions (deeper levels of a draft tree see those), and some by stale ones, as skipped
verifications leave them: features from a few positions earlier, or the last fresh one again and again.

A guided model is served with guidance, which blows up what the two rows of a request predict differently. So
both are trained side by side, and it is the guided distributions that are compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.errors import SettingsError
from vvs.export.drafter import Drafter
from vvs.export.graphs import EncodePromptGraph
from vvs.export.llamagen import Prompt, Target
from vvs.export.t5 import T5Encoder
from vvs.export.training.examples import ExampleSource

FEATURE_WEIGHT = 0.5
DISTRIBUTION_WEIGHT = 1.0
HELD_SHARE = 0.5
"""Share of the examples that look as if every skipped step had taken one token."""


@dataclass(frozen=True)
class FeatureMix:
    """How much of the drafter's training input is not the target's fresh features."""

    predicted: float = 0.3
    """Share of positions that see the drafter's own prediction."""
    stale: float = 0.1
    """Share of positions that see a feature from ``stale_shift`` or fewer positions earlier.

    In half of the examples these positions and the predicted ones see the last feature that is neither, which
    is what skipped steps of one token leave.
    """
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
    """Learns to foresee the target's next feature.

    Args:
        drafter: what is trained.
        target: whom it drafts for; not trained.
        source: of the examples.
        mix: what is done to the input features.
        cfg_scale: guidance scale at which distributions are compared; no effect on a target without guidance.
        text_encoder: that of a target whose prompts are captions.

    """

    name = "drafter"

    def __init__(
        self,
        drafter: Drafter,
        target: Target,
        source: ExampleSource,
        mix: FeatureMix,
        cfg_scale: float,
        text_encoder: T5Encoder | None = None,
    ) -> None:
        self.drafter = drafter
        self.module: nn.Module = drafter
        self._target = target.eval().requires_grad_(False)
        self._guidance_rows = target.config.geometry.guidance_rows
        self._source = source
        self._encode_prompt = EncodePromptGraph(self._target, text_encoder)
        self._mix = mix
        self._cfg_scale = cfg_scale

    def losses(self, batch: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Both losses on one batch, over a plain and a mixed pass; ``agree`` is the top-1 agreement."""
        examples = self._source.draw(batch, rng)
        tokens = examples.tokens.repeat(self._guidance_rows, 1)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                prompt = Prompt(*self._encode_prompt(*examples.conditioning))
                features = self._target.whole_sequence(prompt, tokens).float()
            next_tokens = self._next_tokens(tokens)
            plain = self.drafter.whole_sequence(features[:, :-1], next_tokens)
            mixed_input = self._mixed(features[:, :-1], plain.detach(), rng)
            mixed = self.drafter.whole_sequence(mixed_input, next_tokens)
            theirs = self._logits(features[:, 1:])
            first = self._compare(plain, features[:, 1:], theirs)
            second = self._compare(mixed, features[:, 1:], theirs)
        return {name: (first[name] + second[name]) / 2 for name in first}

    def _next_tokens(self, tokens: Tensor) -> Tensor:
        """Tokens ``[R, P + M - 1]`` paired with features: zeros for the prompt, then the image's."""
        prompt = self._target.config.geometry.prompt_length
        return torch.cat([tokens.new_zeros(len(tokens), prompt - 1), tokens], dim=1)

    def _mixed(self, features: Tensor, predicted: Tensor, rng: np.random.Generator) -> Tensor:
        """Swap some image rows of ``features [g R, L, D]`` for predictions of them or for stale ones."""
        mix, g = self._mix, self._guidance_rows
        requests, length = len(features) // g, features.shape[1]
        draw = torch.from_numpy(rng.random((requests, length), dtype=np.float32))
        draw[:, : self._target.config.geometry.prompt_length] = 1.0
        foreseen = draw < mix.predicted
        stale = (draw < mix.predicted + mix.stale) & ~foreseen
        own = torch.arange(length).expand(requests, -1)
        shift = int(rng.integers(1, mix.stale_shift + 1))
        shifted = torch.where(stale, own - shift, own).clamp(min=0)
        held = torch.where(stale | foreseen, 0, own).cummax(dim=1).values
        holds = torch.from_numpy(rng.random((requests, 1)) < HELD_SHARE)
        seen = torch.where(holds, held, shifted).repeat(g, 1)
        old = features.gather(1, seen.unsqueeze(-1).expand_as(features))
        own_predictions = torch.cat([features[:, :1], predicted[:, :-1].to(features.dtype)], dim=1)
        return torch.where((foreseen & ~holds).repeat(g, 1).unsqueeze(-1), own_predictions, old)

    def _logits(self, features: Tensor) -> Tensor:
        """Guided logits ``[R, M, V]`` of ``features [g R, L, D]``, of rows that predict an image token."""
        first = self._target.config.geometry.prompt_length - 1
        scales = features.new_full((len(features) // self._guidance_rows,), self._cfg_scale)
        return self._target.guided_logits(features[:, first:], scales.float())

    def _compare(self, predicted: Tensor, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Losses over the rows that predict an image token; ``logits`` are those of ``features``."""
        first = self._target.config.geometry.prompt_length - 1
        ours, theirs = self._logits(predicted).flatten(0, 1), logits.flatten(0, 1)
        distance = F.smooth_l1_loss(predicted[:, first:].float(), features[:, first:])
        divergence = F.cross_entropy(ours, theirs.softmax(-1))
        loss = FEATURE_WEIGHT * distance + DISTRIBUTION_WEIGHT * divergence
        agree = (ours.argmax(-1) == theirs.argmax(-1)).float().mean()
        return {"loss": loss, "feature": distance, "distribution": divergence, "agree": agree}
