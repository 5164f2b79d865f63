"""Geometry: the sizes of one model that the exporter, the loop and every backend must agree on."""

from dataclasses import dataclass, fields

from vvs.errors import SettingsError

CAPACITY_MULTIPLE = 8


@dataclass(frozen=True)
class Geometry:
    """Sizes of a target, its drafter and its image tokenizer.

    Positions: the P prompt rows sit at 0 .. P-1, image token i (0-based) at P + i.
    """

    grid: int
    """Tokens along one side of the image; an image is complete at ``grid * grid`` tokens."""
    vocabulary: int
    """V, number of image codes."""
    code_dim: int
    """Width of one codebook entry."""
    prompt_length: int
    """P, prompt rows; prompts are left-padded to it."""
    layers: int
    heads: int
    head_dim: int
    hidden: int
    """D, width of embeddings and features."""
    guidance_rows: int
    """g: 2 when every request has a conditional and an unconditional row (CFG), else 1. B = g R."""
    image_size: int
    """Pixels along one side of the decoded image."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingsError(f"geometry.{field.name} is {value!r}, but it must be a positive integer")
        if self.guidance_rows > 2:
            raise SettingsError(f"geometry.guidance_rows is {self.guidance_rows}, but it must be 1 or 2")
        if self.image_size % self.grid:
            raise SettingsError(
                f"geometry.image_size is {self.image_size}, which is not a multiple of the grid, {self.grid}"
            )

    @property
    def image_tokens(self) -> int:
        """Tokens of one complete image."""
        return self.grid * self.grid

    @property
    def capacity(self) -> int:
        """S, KV rows per sequence: the prompt and all image tokens, rounded up to a multiple of 8."""
        rows = self.prompt_length + self.image_tokens
        return -(-rows // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE
