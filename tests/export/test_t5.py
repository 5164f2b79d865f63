"""The T5 encoder against the one of ``transformers``, in half precision, and as a prompt graph."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from vvs.errors import SettingsError
from vvs.export.graphs import EncodePromptGraph
from vvs.export.llamagen import CaptionConditioning, Target, TargetConfig
from vvs.export.onnx_export import GraphWriter, trace
from vvs.export.parity import compare, failures
from vvs.export.precision import in_precision
from vvs.export.survey import randomise
from vvs.export.t5 import T5Config, T5Encoder, distance_buckets
from vvs.geometry import Geometry

TINY = T5Config(vocabulary=50, hidden=24, layers=2, heads=3, head_dim=4, ffn=40, buckets=8, max_distance=20)


def random_encoder(config: T5Config = TINY) -> T5Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return T5Encoder(config).eval()


def padded(lengths: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.arange(len(lengths) * length).reshape(len(lengths), length) * 7 % TINY.vocabulary
    return ids, torch.arange(length) < torch.tensor(lengths).unsqueeze(1)


@pytest.mark.parametrize("projection", ["gated-gelu", "relu", "gated-silu"])
def test_as_transformers(projection: str) -> None:
    transformers: Any = pytest.importorskip("transformers")
    theirs = transformers.T5EncoderModel(
        transformers.T5Config(
            vocab_size=TINY.vocabulary,
            d_model=TINY.hidden,
            d_kv=TINY.head_dim,
            d_ff=TINY.ffn,
            num_layers=TINY.layers,
            num_heads=TINY.heads,
            relative_attention_num_buckets=TINY.buckets,
            relative_attention_max_distance=TINY.max_distance,
            feed_forward_proj=projection,
        )
    ).eval()
    activation = projection.removeprefix("gated-")
    config = dataclasses.replace(TINY, gated=projection.startswith("gated"), activation=activation)
    ours = T5Encoder(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.3)
    state = {k: v for k, v in theirs.state_dict().items() if k != "encoder.embed_tokens.weight"}
    ours.load_state_dict(state)
    ids, mask = padded([30, 7, 1], 30)
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        got = ours(ids, mask)
    torch.testing.assert_close(got[mask], expected[mask], atol=2e-5, rtol=2e-5)


def test_buckets() -> None:
    """Near keys have a bucket each, far ones share; left and right do not."""
    buckets = distance_buckets(40, 8, 20)
    assert buckets[10, 10:13].tolist() == [0, 5, 6]
    assert buckets[10, 8:10].tolist() == [2, 1]
    assert buckets[0, 39] == 7
    assert buckets[39, 0] == 3
    assert buckets.max() == 7


def test_random_queries_are_small_enough_for_scores_without_a_scale() -> None:
    encoder = random_encoder()
    config = encoder.config
    randomise(encoder, lambda _: torch.float32, torch.Generator().manual_seed(0), config.random_scale)
    attention = encoder.get_submodule("encoder.block.0.layer.0.SelfAttention")
    query, key = (attention.get_parameter(f"{name}.weight").std().item() for name in "qk")
    assert query == pytest.approx(key * config.head_dim**-0.5, rel=0.2)


def test_half_precision_does_not_overflow() -> None:
    """Inner activations far beyond fp16's range come out right all the same."""
    encoder = random_encoder()
    with torch.no_grad():
        for block in encoder.encoder.block:
            block.layer[1].DenseReluDense.wi_0.weight *= 60
            block.layer[1].DenseReluDense.wi_1.weight *= 60
            block.layer[1].layer_norm.weight *= 30
    ids, mask = padded([12, 5], 12)
    with torch.no_grad():
        expected, got = encoder(ids, mask), in_precision(encoder, torch.float16)(ids, mask)
    assert encoder.shared.weight.dtype == torch.float32
    assert got.isfinite().all()
    assert (got - expected)[mask].abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_as_a_graph(tmp_path: Path, precision: str) -> None:
    geometry = Geometry(4, 64, 8, 9, 1, 2, 8, 16, 2, 8)
    dtype = torch.float16 if precision == "fp16" else torch.float32
    target = in_precision(Target(TargetConfig(geometry, CaptionConditioning(24), ffn=32)).eval(), dtype)
    graph = EncodePromptGraph(target, in_precision(random_encoder(), dtype))
    GraphWriter(tmp_path).write(trace(graph, 2), "graph.onnx")
    assert not failures(compare(tmp_path / "graph.onnx", graph, precision))


def test_the_graph_moves_captions_right() -> None:
    """Padding is zero on the left, and the unconditional rows follow."""
    geometry = Geometry(4, 64, 8, 9, 1, 2, 8, 16, 2, 8)
    target = Target(TargetConfig(geometry, CaptionConditioning(24), ffn=32)).eval()
    encoder = random_encoder()
    ids, mask = padded([3, 9], 9)
    with torch.no_grad():
        embeds, moved = EncodePromptGraph(target, encoder)(ids, mask)
        expected = target.model.cls_embedding.cap_proj(encoder(ids, mask))
        unconditional = target.model.cls_embedding.cap_proj(target.model.cls_embedding.uncond_embedding)
    assert moved.tolist() == [[False] * 6 + [True] * 3, [True] * 9] * 2
    torch.testing.assert_close(embeds[0, 6:], expected[0, :3])
    torch.testing.assert_close(embeds[1], expected[1])
    assert not embeds[0, :6].any()
    torch.testing.assert_close(embeds[2], unconditional)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"activation": "tanh"}, "activation is 'tanh', but it must be one of gelu"),
        ({"buckets": 6}, "buckets are 6, but they must be a multiple of 4"),
        ({"max_distance": 2}, "max_distance is 2, but 8 buckets need more than 2"),
    ],
)
def test_settings_that_cannot_be(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        dataclasses.replace(TINY, **change)
