"""Trains the VQ tokenizer: reconstruction losses, an EMA codebook, and a fresh start for dead codes."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from vvs.export.training.garments import Garments, draw_colours, tint
from vvs.export.vq import VQTokenizer

CODEBOOK_DECAY = 0.99
COMMITMENT = 0.25
EDGE_WEIGHT = 0.5
DEAD_BELOW = 0.05


class _TrackedTokenizer(nn.Module):
    """The tokenizer and the running statistics of its codes."""

    def __init__(self, tokenizer: VQTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        tokenizer.quantize.embedding.weight.requires_grad_(False)
        codes = F.normalize(torch.randn_like(tokenizer.quantize.embedding.weight), dim=-1)
        tokenizer.quantize.embedding.weight.data.copy_(codes)
        self.register_buffer("usage", torch.ones(len(codes)))
        self.register_buffer("sums", codes.clone())

    usage: Tensor
    sums: Tensor

    @torch.no_grad()
    def update_codes(self, unit: Tensor, ids: Tensor) -> None:
        """Move each code to the mean direction of the latents ``[M, C]`` that chose it (``ids [M]``)."""
        counts = torch.zeros_like(self.usage).index_add_(0, ids, torch.ones_like(unit[:, 0]))
        sums = torch.zeros_like(self.sums).index_add_(0, ids, unit)
        self.usage.lerp_(counts, 1 - CODEBOOK_DECAY)
        self.sums.lerp_(sums, 1 - CODEBOOK_DECAY)
        dead = self.usage < DEAD_BELOW
        if dead.any():
            chosen = unit[torch.randint(len(unit), (int(dead.sum()),))]
            self.sums[dead] = chosen
            self.usage[dead] = 1.0
        self.tokenizer.quantize.embedding.weight.copy_(F.normalize(self.sums, dim=-1))


class VQStage:
    """Learns tokens that keep a tinted garment's shape, shade and colour."""

    name = "vq"

    def __init__(self, tokenizer: VQTokenizer, data: Garments) -> None:
        self.tokenizer = tokenizer
        self.module = _TrackedTokenizer(tokenizer)
        self._data = data

    def losses(self, batch: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        """Reconstruction (absolute, squared and edges) and commitment of one batch."""
        picks = torch.from_numpy(rng.integers(len(self._data), size=batch))
        colours = torch.from_numpy(draw_colours(self._data.labels[picks].numpy(), rng))
        pixels = tint(self._data.grey[picks], colours)
        with torch.autocast("cpu", torch.bfloat16):
            latents = self.tokenizer.encode_latents(pixels)
        unit = F.normalize(latents.float(), dim=1)
        ids = self.tokenizer.quantize.nearest(unit.detach())
        codes = self.tokenizer.quantize.lookup(ids)
        flat = unit.detach().permute(0, 2, 3, 1).reshape(-1, unit.shape[1])
        self.module.update_codes(flat, ids.flatten())
        with torch.autocast("cpu", torch.bfloat16):
            decoded = self.tokenizer.decode_codes(unit + (codes - unit).detach())
        return self._compare(decoded.float(), pixels, F.mse_loss(unit, codes.detach()))

    def _compare(self, decoded: Tensor, pixels: Tensor, commitment: Tensor) -> Mapping[str, Tensor]:
        error = decoded - pixels
        squared = error.square().mean()
        edges = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
        loss = error.abs().mean() + 2 * squared + EDGE_WEIGHT * edges + COMMITMENT * 8 * commitment
        psnr = 10 * torch.log10(4 / squared)
        return {"loss": loss, "psnr": psnr, "commitment": commitment}
