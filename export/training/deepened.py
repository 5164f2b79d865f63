"""Deepened: a trained drafter with more layers, to be trained on."""

import dataclasses

from torch import nn

from vvs.errors import SettingsError
from vvs.export.drafter import Drafter, DrafterLayer


def deepened(drafter: Drafter, layers: int) -> Drafter:
    """A drafter of ``layers`` layers that predicts what ``drafter`` does: new ones at first add nothing.

    Raises:
        SettingsError: it has more layers than that.

    """
    there = drafter.config.layers
    if layers < there:
        raise SettingsError(f"the drafter that is there has {there} layers, so it cannot go on with {layers}")
    deeper = Drafter(dataclasses.replace(drafter.config, layers=layers))
    deeper.load_state_dict(drafter.state_dict(), strict=layers == there)
    for layer in list(deeper.layers)[there:]:
        assert isinstance(layer, DrafterLayer)  # noqa: S101 - for the type checker
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return deeper
