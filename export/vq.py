"""The VQ image tokenizer of LlamaGen: an encoder, a codebook of unit vectors, a decoder.

Parameter names are those of the published checkpoints (``vq_ds16_t2i.pt`` and its kin), so their
weights load as they are. Training (EMA codebook, losses) lives in ``vvs.export.training``.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from vvs.errors import SettingsError

NORM_GROUPS = 32
NORM_EPS = 1e-6


@dataclass(frozen=True)
class VQConfig:
    """Sizes of a VQ tokenizer; the defaults are those of ``vq_ds16_*``."""

    codes: int = 16384
    code_dim: int = 8
    channels: int = 128
    channel_multipliers: tuple[int, ...] = (1, 1, 2, 2, 4)
    residual_blocks: int = 2
    latent_channels: int = 256

    def __post_init__(self) -> None:
        widths = [self.channels * m for m in self.channel_multipliers]
        if not widths:
            raise SettingsError("channel_multipliers is empty, but a VQ tokenizer needs at least one level")
        for width in widths:
            if width % NORM_GROUPS:
                raise SettingsError(
                    f"a VQ level of {width} channels cannot be normalised in groups of {NORM_GROUPS}: "
                    "channels times every multiplier must be a multiple of it"
                )

    @property
    def downsampling(self) -> int:
        """Pixels per token along one side."""
        return int(2 ** (len(self.channel_multipliers) - 1))


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(NORM_GROUPS, channels, eps=NORM_EPS)


class ResidualBlock(nn.Module):
    """Two normalised 3x3 convolutions and a shortcut, ``[R, C_in, H, W] -> [R, C_out, H, W]``."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.norm1 = _norm(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.norm2 = _norm(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        if channels_in != channels_out:
            self.nin_shortcut = nn.Conv2d(channels_in, channels_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        shortcut: Tensor = self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x
        out: Tensor = shortcut + h
        return out


class AttentionBlock(nn.Module):
    """Single-head self-attention over all pixels, ``[R, C, H, W] -> [R, C, H, W]``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        h = self.norm(x)
        query, key, value = (conv(h).flatten(2).transpose(1, 2) for conv in (self.q, self.k, self.v))
        scores = torch.matmul(query, key.transpose(1, 2)) * key.shape[-1] ** -0.5
        attended = torch.matmul(torch.softmax(scores, dim=-1), value)
        out: Tensor = x + self.proj_out(attended.transpose(1, 2).reshape(x.shape))
        return out


class Downsample(nn.Module):
    """Halve both sides with a strided convolution, padded right and below as published."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Halve both sides."""
        out: Tensor = self.conv(F.pad(x, (0, 1, 0, 1)))
        return out


class Upsample(nn.Module):
    """Double both sides: nearest neighbour, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Double both sides."""
        out: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return out


class Level(nn.Module):
    """One resolution: residual blocks, each followed by attention if coarsest, then a resampling."""

    def __init__(
        self, channels_in: int, channels_out: int, blocks: int, *, attention: bool, resample: str | None
    ) -> None:
        super().__init__()
        widths = [channels_in] + [channels_out] * blocks
        self.res = nn.ModuleList(ResidualBlock(a, b) for a, b in pairwise(widths))
        self.attn = nn.ModuleList(AttentionBlock(channels_out) for _ in range(blocks if attention else 0))
        if resample == "down":
            self.downsample = Downsample(channels_out)
        elif resample == "up":
            self.upsample = Upsample(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """Apply all blocks, then resample."""
        for i, block in enumerate(self.res):
            x = block(x)
            if len(self.attn):
                x = self.attn[i](x)
        for name in ("downsample", "upsample"):
            if hasattr(self, name):
                x = getattr(self, name)(x)
        return x


def _middle(channels: int) -> nn.ModuleList:
    return nn.ModuleList(
        [ResidualBlock(channels, channels), AttentionBlock(channels), ResidualBlock(channels, channels)]
    )


class Encoder(nn.Module):
    """Pixels ``[R, 3, H, W]`` to latents ``[R, Z, H / d, W / d]``."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        widths = [config.channels * m for m in config.channel_multipliers]
        last = len(widths) - 1
        self.conv_in = nn.Conv2d(3, config.channels, 3, padding=1)
        self.conv_blocks = nn.ModuleList(
            Level(
                config.channels if i == 0 else widths[i - 1],
                width,
                config.residual_blocks,
                attention=i == last,
                resample=None if i == last else "down",
            )
            for i, width in enumerate(widths)
        )
        self.mid = _middle(widths[-1])
        self.norm_out = _norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], config.latent_channels, 3, padding=1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Latents of pixels."""
        h = self.conv_in(pixels)
        for module in (*self.conv_blocks, *self.mid):
            h = module(h)
        out: Tensor = self.conv_out(F.silu(self.norm_out(h)))
        return out


class Decoder(nn.Module):
    """Latents ``[R, Z, h, w]`` to pixels ``[R, 3, h d, w d]``."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        widths = [config.channels * m for m in reversed(config.channel_multipliers)]
        last = len(widths) - 1
        self.conv_in = nn.Conv2d(config.latent_channels, widths[0], 3, padding=1)
        self.mid = _middle(widths[0])
        self.conv_blocks = nn.ModuleList(
            Level(
                widths[0] if i == 0 else widths[i - 1],
                width,
                config.residual_blocks + 1,
                attention=i == 0,
                resample=None if i == last else "up",
            )
            for i, width in enumerate(widths)
        )
        self.norm_out = _norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        """Pixels of latents."""
        h = self.conv_in(latents)
        for module in (*self.mid, *self.conv_blocks):
            h = module(h)
        out: Tensor = self.conv_out(F.silu(self.norm_out(h)))
        return out


class Codebook(nn.Module):
    """Codes and their nearest-neighbour search; both sides are L2-normalised before they are compared."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.codes, config.code_dim)

    def unit_codes(self) -> Tensor:
        """All codes as unit vectors ``[V, C]``."""
        return F.normalize(self.embedding.weight, dim=-1)

    def nearest(self, latents: Tensor) -> Tensor:
        """Index ``[R, h, w]`` of the code nearest to each latent ``[R, C, h, w]``."""
        unit = F.normalize(latents, dim=1)
        similarity = torch.einsum("rchw,vc->rhwv", unit, self.unit_codes())
        return similarity.argmax(-1)

    def lookup(self, ids: Tensor) -> Tensor:
        """Codes ``[R, C, h, w]`` of ids ``[R, h, w]``."""
        return F.embedding(ids, self.unit_codes()).permute(0, 3, 1, 2)


class VQTokenizer(nn.Module):
    """Images to tokens and back; parameter names as published."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quantize = Codebook(config)
        self.quant_conv = nn.Conv2d(config.latent_channels, config.code_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.code_dim, config.latent_channels, 1)

    def encode_latents(self, pixels: Tensor) -> Tensor:
        """Latents before quantisation ``[R, C, h, w]`` of pixels ``[R, 3, H, W]`` in [-1, 1]."""
        out: Tensor = self.quant_conv(self.encoder(pixels))
        return out

    def encode(self, pixels: Tensor) -> Tensor:
        """Token ids ``[R, h, w]`` of pixels ``[R, 3, H, W]`` in [-1, 1]."""
        return self.quantize.nearest(self.encode_latents(pixels))

    def decode_codes(self, codes: Tensor) -> Tensor:
        """Pixels ``[R, 3, H, W]`` of codes ``[R, C, h, w]``; values may leave [-1, 1] a little."""
        out: Tensor = self.decoder(self.post_quant_conv(codes))
        return out

    def decode(self, ids: Tensor) -> Tensor:
        """Pixels ``[R, 3, H, W]`` of token ids ``[R, h, w]``."""
        return self.decode_codes(self.quantize.lookup(ids))
