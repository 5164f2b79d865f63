"""Published: the speed-quality rows of the VVS paper (arXiv 2511.13587), for LlamaGen-XL.

Another model and another metric's data than the demo's: what may be compared is the shape, not the figures.
"""

from typing import NamedTuple


class PublishedRow(NamedTuple):
    """One line of the paper's table."""

    model: str
    mode: str
    interval: int | None
    delta: float | None
    step_compression: float
    """Image tokens per target pass."""
    fid: float


STAGE_1, STAGE_2 = "LlamaGen-XL, stage I", "LlamaGen-XL, stage II"
PUBLISHED = (
    PublishedRow(STAGE_1, "AR", None, None, 1.00, 24.88),
    PublishedRow(STAGE_1, "EAGLE-2", None, None, 1.22, 25.28),
    PublishedRow(STAGE_1, "LANTERN", None, 0.3, 2.10, 24.97),
    PublishedRow(STAGE_1, "VVS", 4, 0.2, 2.24, 24.96),
    PublishedRow(STAGE_2, "AR", None, None, 1.00, 48.23),
    PublishedRow(STAGE_2, "EAGLE-2", None, None, 1.22, 47.80),
    PublishedRow(STAGE_2, "LANTERN", None, 0.2, 1.83, 50.23),
    PublishedRow(STAGE_2, "VVS", 2, 0.1, 2.86, 47.19),
)
PUBLISHED_NOTE = (
    "LlamaGen-XL as published (arXiv 2511.13587): FID on 5,000 COCO captions, temperature 1; the paper's "
    "wall-clock speed-up is 1.76x on an A40. Another model and other data: compare the shape, not the figures"
)
