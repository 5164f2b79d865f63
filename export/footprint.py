"""Footprint: how large a bundle will be, and what writing it takes, computed from the models' settings.

Nothing is built for it. Sizes are those of the weights (graphs themselves are small); memory is an estimate.
"""

from dataclasses import dataclass

import torch
from torch import nn

from vvs.export.drafter import Drafter, DrafterConfig
from vvs.export.llamagen import Target, TargetConfig
from vvs.export.model_set import ModelSet
from vvs.export.t5 import T5Config, T5Encoder
from vvs.export.vq import VQConfig, VQTokenizer
from vvs.precision import PRECISIONS, Precision

MOST_NEIGHBOURS = 1024
"""Nearest codes stored per token; relaxed acceptance wants hundreds at most."""
GRAPH_BYTES_PER_LAYER = 25_000
"""Size of a graph without its weights, per transformer layer, as measured."""
BASE_MEMORY = 1_200_000_000
"""Of Python, PyTorch and the tracer, as measured."""
RUN_BYTES = 4
"""What ONNX Runtime holds per parameter of a graph on a CPU while it is compared: float32, packed anew."""


def parameters(module: nn.Module | None) -> int:
    """Parameters of a module."""
    return 0 if module is None else sum(p.numel() for p in module.parameters())


@dataclass(frozen=True)
class Footprint:
    """Parameters of the graphs of one bundle, and the bytes that follow from them."""

    target: int
    encode_prompt: int
    draft_tree: int
    """Without the head, which it shares with the target."""
    decode_image: int
    fused: int
    """Parameters that exist a second time while they are exported: of fused products."""
    vocabulary: int
    hidden: int
    code_dim: int
    layers: int
    """Of target and text encoder."""
    trees: int
    precision: Precision
    """Of target, drafter and text encoder; kept parts are not known here and take a little more."""

    @classmethod
    def of(
        cls,
        target: TargetConfig,
        drafter: DrafterConfig,
        vq: VQConfig,
        text_encoder: T5Config | None,
        trees: int,
        precision: str,
    ) -> "Footprint":
        """The footprint of models of these settings."""
        with torch.device("meta"):
            trunk, draft, image = Target(target), Drafter(drafter), VQTokenizer(vq)
            encoder = None if text_encoder is None else T5Encoder(text_encoder)
        D, geometry = target.geometry.hidden, target.geometry
        prompt = parameters(trunk.model.cls_embedding)
        per_layer, per_drafter_layer = (3 * D * D + 2 * D * config.ffn for config in (target, drafter))
        return cls(
            target=parameters(trunk) - prompt - geometry.vocabulary * D,
            encode_prompt=prompt + parameters(encoder),
            # The token's half of the first product is folded into the embeddings.
            draft_tree=parameters(draft) - D * D,
            decode_image=parameters(image.decoder)
            + parameters(image.post_quant_conv)
            + vq.codes * vq.code_dim,
            fused=geometry.layers * per_layer + drafter.layers * per_drafter_layer + geometry.vocabulary * D,
            vocabulary=geometry.vocabulary,
            hidden=D,
            code_dim=geometry.code_dim,
            layers=geometry.layers + (0 if text_encoder is None else text_encoder.layers),
            trees=trees,
            precision=PRECISIONS[precision],
        )

    @property
    def files(self) -> dict[str, int]:
        """Bytes of the bundle's files, or groups of files."""
        V, table = self.vocabulary, self.vocabulary * self.hidden
        each, product = self.precision.item_bytes, self.precision.product_bytes
        return {
            "weights of the target": self.target * product,
            "weights of encode_prompt": self.encode_prompt * each,
            "weights of the drafter": (self.draft_tree - table) * product + table * each,
            "weights of decode_image": self.decode_image * torch.float32.itemsize,
            "token embeddings": table * each,
            "codebook": V * 4 * (self.code_dim + min(V - 1, MOST_NEIGHBOURS)),
            "graphs": GRAPH_BYTES_PER_LAYER * (self.layers + 4 * self.trees + 20),
        }

    @property
    def total(self) -> int:
        """Bytes of the bundle."""
        return sum(self.files.values())

    def memory(self, loaded: int) -> int:
        """Most memory that writing it takes, when ``loaded`` bytes of weights are not mapped from disk."""
        largest = max(self.target, self.encode_prompt, self.decode_image)
        return BASE_MEMORY + loaded + self.fused * self.precision.item_bytes + largest * RUN_BYTES


def footprint_of(models: ModelSet, precision: str) -> Footprint:
    """The footprint of models at hand."""
    encoder = models.text_encoder
    return Footprint.of(
        models.target.config,
        models.drafter.config,
        models.vq.config,
        None if encoder is None else encoder.config,
        len(models.trees),
        precision,
    )
