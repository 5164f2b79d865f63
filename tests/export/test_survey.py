"""Published layouts, found by their tensors and loaded; and what is said about weights that do not fit."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from layouts import original_layout, sharded, text_encoder_folder
from recordings import load_golden
from safetensors.torch import save_file

from vvs.errors import CheckpointError, SettingsError
from vvs.export.layouts import Kind, open_checkpoint, recognise
from vvs.export.llamagen import ClassConditioning, Target, TargetConfig
from vvs.export.precision import Numerics
from vvs.export.recipe import RANDOM, Recipe, load_recipe
from vvs.export.sizes import infer_target, infer_vq
from vvs.export.survey import without_memory
from vvs.export.vq import VQConfig, VQTokenizer
from vvs.geometry import Geometry

if TYPE_CHECKING:
    from vvs.export.model_set import ModelSet

RECIPE = """
name = "golden"

[weights]
target = "some_target"
drafter = "some_drafter"
vq = "some_vq"
text_encoder = "some_encoder"

[geometry]
grid = 16
heads = 4
layers = 2

[conditioning]
kind = "t5"

[[trees]]
k = 3
depth = 2
total = 8
"""

Change = Callable[[Path], Any]


@pytest.fixture
def folder(tmp_path: Path, golden_models: ModelSet) -> Path:
    """The recorded models in published layouts, under names that say nothing."""
    torch.save({"model": original_layout(golden_models.target.state_dict()), "steps": 3}, tmp_path / "a.pt")
    (tmp_path / "b").mkdir()
    torch.save(golden_models.drafter.state_dict(), tmp_path / "b" / "pytorch_model.bin")
    (tmp_path / "b" / "config.json").write_text(json.dumps({"hidden_size": 64, "num_attention_heads": 4}))
    vq = {**golden_models.vq.state_dict(), "quantize.codebook_used": torch.zeros(9)}
    torch.save({"model": vq, "ema": vq}, tmp_path / "c.pt")
    text_encoder_folder(tmp_path / "t5" / "xl", hidden=32)
    torch.save({"args": [1]}, tmp_path / "training_args.bin")
    (tmp_path / "r.toml").write_text(RECIPE)
    return tmp_path


def recipe(folder: Path, old: str = "", new: str = "") -> Recipe:
    (folder / "r.toml").write_text(RECIPE.replace(old, new) if old else RECIPE)
    return load_recipe(folder / "r.toml")


def logits(target: Target) -> torch.Tensor:
    """Guided logits of the recorded prompt and some tokens."""
    recorded = load_golden("target_forward")
    caption = torch.tensor(recorded["caption"]).reshape(1, 120, -1)
    length = int(recorded["prompt_mask"].reshape(-1, 120)[0].sum())
    left = torch.cat([caption[:, 120 - length :], caption[:, : 120 - length]], dim=1)
    mask = (torch.arange(120) < length).unsqueeze(0)
    tokens = (torch.arange(9) * 41 % 512).expand(2, -1)
    with torch.no_grad():
        features = target.whole_sequence(target.encode_prompt(left, mask), tokens)
        return target.guided_logits(features, torch.tensor([3.0]))


def test_everything_is_found_by_its_tensors(folder: Path, golden_models: ModelSet) -> None:
    survey = recipe(folder).survey()
    assert {kind: one.path.name for kind, one in survey.checkpoints.items()} == {
        Kind.TARGET: "a.pt",
        Kind.DRAFTER: "b",
        Kind.VQ: "c.pt",
        Kind.TEXT_ENCODER: "xl",
    }
    assert survey.random_parts == ()
    models = survey.models()
    torch.testing.assert_close(logits(models.target), logits(golden_models.target))
    torch.testing.assert_close(models.drafter.state_dict(), golden_models.drafter.state_dict())
    tokens = torch.arange(256).reshape(1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(models.vq.decode(tokens), golden_models.vq.decode(tokens))
    assert models.conditioning.kind == "t5"
    assert models.text_encoder is not None
    assert models.text_encoder.config.layers == 2


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_hugging_face_shards(folder: Path, golden_models: ModelSet, kind: str) -> None:
    (folder / "a.pt").unlink()
    target = folder / "some_target"
    sharded(golden_models.target.state_dict(), target, kind)
    (target / "config.json").write_text(json.dumps({"num_attention_heads": 4, "hidden_size": 64}))
    survey = recipe(folder).survey()
    assert survey.checkpoints[Kind.TARGET].layout.name == "LlamaGen, Hugging Face style"
    torch.testing.assert_close(logits(survey.models().target), logits(golden_models.target))


@pytest.mark.parametrize("nesting", ["module", "state_dict", None])
def test_class_conditional_originals(tmp_path: Path, nesting: str | None) -> None:
    """B in everything but its width: one prompt row, and a class more than there are."""
    geometry = Geometry(24, 64, 8, 1, 2, 2, 8, 16, 2, 384)
    config = TargetConfig(geometry, ClassConditioning(10), ffn=32)
    target = Target(config).eval()
    state = original_layout(target.state_dict())
    torch.save({nesting: state} if nesting else state, tmp_path / "c2i.pt")
    checkpoint = open_checkpoint(tmp_path / "c2i.pt")
    found = infer_target(checkpoint.state, "it", grid=24, image_size=384, code_dim=8, heads=2)
    assert found == config
    again = without_memory(Target, found)
    again.load_state_dict(checkpoint.state, assign=True)
    classes, tokens = torch.tensor([3]), torch.arange(40).expand(2, -1)
    with torch.no_grad():
        got, expected = (
            t.guided_logits(t.whole_sequence(t.encode_prompt(classes), tokens), torch.tensor([2.0]))
            for t in (again, target)
        )
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(("multipliers", "pixels"), [((1, 1, 2, 2, 4), 16), ((1, 2, 2, 4), 8)])
def test_image_tokenizers(tmp_path: Path, multipliers: tuple[int, ...], pixels: int) -> None:
    """``ds16`` and ``ds8``."""
    config = VQConfig(codes=20, channels=32, channel_multipliers=multipliers, latent_channels=16)
    vq = VQTokenizer(config).eval()
    torch.save({"model": vq.state_dict()}, tmp_path / "vq.pt")
    checkpoint = open_checkpoint(tmp_path / "vq.pt")
    found = infer_vq(checkpoint.state, checkpoint.what)
    assert found == config
    assert found.downsampling == pixels
    again = without_memory(VQTokenizer, found)
    again.load_state_dict(checkpoint.state, assign=True)
    tokens = torch.arange(4).reshape(1, 2, 2)
    with torch.no_grad():
        image = again.decode(tokens)
        torch.testing.assert_close(image, vq.decode(tokens))
    assert image.shape == (1, 3, 2 * pixels, 2 * pixels)


def test_weights_are_mapped_and_not_copied(folder: Path) -> None:
    survey = recipe(folder).survey()
    models = survey.models()
    state = survey.checkpoints[Kind.TARGET].state
    assert models.target.lm_head.weight.data_ptr() == state["lm_head.weight"].data_ptr()
    assert str(folder / "a.pt") in Path("/proc/self/maps").read_text()
    half = survey.models(Numerics("fp16"))
    assert {p.dtype for p in half.target.parameters()} == {torch.float16}
    assert {p.dtype for p in half.vq.parameters()} == {torch.float32}


def test_a_drafter_that_nobody_published(folder: Path) -> None:
    shutil.rmtree(folder / "b")
    with pytest.raises(CheckpointError, match=r"nothing else in .* is a drafter; also, .*training_args\.bin"):
        recipe(folder).survey()
    survey = recipe(folder, '"some_drafter"', '"random"').survey()
    assert survey.random_parts == ("drafter",)
    assert survey.models().random_parts == ("drafter",)


def other_drafter(hidden: int, vocabulary: int) -> Change:
    def change(folder: Path) -> None:
        state = torch.load(folder / "b" / "pytorch_model.bin")
        state["embed_tokens.weight"] = torch.zeros(vocabulary, hidden)
        torch.save(state, folder / "b" / "pytorch_model.bin")

    return change


def other_vq(folder: Path) -> None:
    config = VQConfig(codes=256, channels=32, channel_multipliers=(1, 2), latent_channels=64)
    torch.save({"model": VQTokenizer(config).state_dict()}, folder / "c.pt")


def without(file: str, key: str) -> Change:
    def change(folder: Path) -> None:
        data = torch.load(folder / file)
        del data["model"][key]
        torch.save(data, folder / file)

    return change


def added(file: str, key: str) -> Change:
    def change(folder: Path) -> None:
        data = torch.load(folder / file)
        data["model"][key] = torch.zeros(2)
        torch.save(data, folder / file)

    return change


def only_sentencepiece(folder: Path) -> None:
    (folder / "t5" / "xl" / "tokenizer.json").rename(folder / "t5" / "xl" / "spiece.model")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            other_drafter(32, 512),
            "b is 32 wide (embed_tokens.weight is [512, 32]), but the target is 64 wide",
        ),
        (
            other_drafter(64, 99),
            "b knows 99 tokens (embed_tokens.weight is [99, 64]), but the target knows 512",
        ),
        (other_vq, "c.pt has 256 codes (quantize.embedding.weight), but the target"),
        (without("a.pt", "output.weight"), "a.pt lacks lm_head.weight"),
        (added("a.pt", "extra.weight"), "a.pt has extra.weight, which the model does not know"),
        (without("c.pt", "decoder.conv_in.bias"), "c.pt lacks decoder.conv_in.bias"),
        (lambda f: shutil.copy(f / "a.pt", f / "z.pt"), "several of kind target (a.pt, z.pt)"),
        (lambda f: shutil.copy(f / "a.pt", f / "some_vq"), "some_vq is no checkpoint: it must end in one of"),
        (
            lambda f: shutil.copytree(f / "b", f / "some_target"),
            "some_target is to be the target, but its tensors are of kind drafter (EAGLE drafter)",
        ),
        (
            lambda f: (f / "b" / "config.json").write_text('{"hidden_size": 128}'),
            "says hidden_size is 128, but its tensors make it 64",
        ),
        (
            lambda f: text_encoder_folder(f / "t5" / "xl", hidden=48),
            "states 48 wide (shared.weight), but the target",
        ),
        (
            lambda f: (f / "t5" / "xl" / "config.json").write_text('{"feed_forward_proj": "relu"}'),
            "says feed_forward_proj is 'relu', but its tensors have encoder.block.0.layer.1",
        ),
        (only_sentencepiece, "has its tokenizer as spiece.model only, but a bundle needs tokenizer.json"),
        (
            lambda f: text_encoder_folder(f / "t5" / "xl", hidden=32, vocabulary=20),
            "ids, but the text encoder has embeddings for 20",
        ),
        (
            lambda f: (f / "a.pt").write_bytes((f / "a.pt").read_bytes()[:5000]),
            "nothing else in",
        ),
    ],
)
def test_weights_that_do_not_fit(folder: Path, change: Change, sentence: str) -> None:
    change(folder)
    with pytest.raises(CheckpointError, match=re.escape(sentence)):
        recipe(folder).survey().models()


def test_recipes_that_weights_contradict(folder: Path) -> None:
    vq = "[vq]\ncodes = 512\nchannels = 32\nchannel_multipliers = [1, 1, 2]\nlatent_channels = 64\n"
    for old, new, sentence in (
        ("layers = 2", "layers = 3", "says layers is 3, but the target .*a.pt has 2"),
        ("[[trees]]", f"{vq}\n[[trees]]", r"says vq.channel_multipliers is \(1, 1, 2\), but .* has \(1, 2\)"),
        ('"t5"', '"class"', "says prompts are of kind class, but .* takes caption"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            recipe(folder, old, new).survey()


@pytest.mark.parametrize(
    ("names", "family"),
    [
        (["model.vqmodel.encoder.x", "model.layers.0.self_attn.q_proj.weight"], "a Chameleon model"),
        (["down_blocks.0.x"], "a diffusion U-Net"),
        (["encoder.down.0.x", "quantize.embedding.weight"], "a VQ model of another family"),
        (["b", "a"], r"of no known kind \(its first tensors are a, b\)"),
    ],
)
def test_other_families(tmp_path: Path, names: list[str], family: str) -> None:
    assert recognise(names) is None
    save_file({name: torch.zeros(1) for name in names}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=f"is {family}.*, but it must be one of target"):
        open_checkpoint(tmp_path / "x.safetensors")


def test_random_captions_get_a_tokenizer(folder: Path) -> None:
    """It is made up, since T5's is not ours to give; a bundle says so."""
    sizes = "heads = 2\nvocabulary = 64\ncode_dim = 8\nprompt_length = 9\nhead_dim = 8\nhidden = 16\n"
    sizes += "image_size = 32"
    text = RECIPE.replace("heads = 4", sizes).replace('"t5"', '"t5"\ncaption_dim = 24') + (
        "[vq]\ncodes = 64\nchannels = 32\nchannel_multipliers = [1, 1]\nlatent_channels = 32\n"
        "[text_encoder]\nvocabulary = 100\nhidden = 24\nlayers = 1\nheads = 2\nhead_dim = 4\nffn = 8\n"
    )
    (folder / "r.toml").write_text(text)
    models = load_recipe(folder / "r.toml").models(RANDOM)
    assert models.random_parts == ("target", "drafter", "image tokenizer", "text encoder", "tokenizer")
    assert models.tokenizer is not None
    assert "</s>" in models.tokenizer
    (folder / "r.toml").write_text(text[: text.index("[text_encoder]")])
    with pytest.raises(SettingsError, match=r"random weights need \[text_encoder\]"):
        load_recipe(folder / "r.toml").models(RANDOM)
