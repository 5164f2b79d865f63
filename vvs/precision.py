"""Precision: what the numbers of a bundle's graphs are, by name.

Names are those of recipes, manifests and the command line. Norms, softmax and rotations are computed in
float32 whatever the precision, and the image decoder is float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """One way to store and compute."""

    compute: str
    """Of activations, caches and the inputs and outputs that hold them: ``fp32``, ``fp16`` or ``bf16``."""
    int8_weights: bool = False
    """Whether products of target and drafter keep their weights as int8, one scale an output channel."""

    @property
    def item_bytes(self) -> int:
        """Bytes of a computed number."""
        return 4 if self.compute == "fp32" else 2

    @property
    def product_bytes(self) -> int:
        """Bytes of a weight of the target's and the drafter's products."""
        return 1 if self.int8_weights else self.item_bytes


PRECISIONS: Mapping[str, Precision] = {
    "fp32": Precision("fp32"),
    "fp16": Precision("fp16"),
    "bf16": Precision("bf16"),
    "int8": Precision("fp32", int8_weights=True),
    "int8-fp16": Precision("fp16", int8_weights=True),
    "int8-bf16": Precision("bf16", int8_weights=True),
}
