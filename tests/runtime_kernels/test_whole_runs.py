"""Whole runs on the kernels against the loop in numpy, over an engine that notices wrong bookkeeping."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_loop import KernelLoop, sessions_agree
from toy_engine import ToyEngine

from vvs.acceptance import Lantern, LanternPlusPlus
from vvs.codebook import Codebook
from vvs.config import GenerationConfig
from vvs.decoding import Decoder
from vvs.runtime.kernels.state import Counter
from vvs.sampling import Sampling
from vvs.selection import MostConfidentPath, RandomPath, SampledPath
from vvs.skipping import Dynamic, Share, Uniform
from vvs.tree_shape import TreeShape
from vvs.uniforms import UniformStream

V = 12
CODEBOOK = Codebook.from_latents(np.random.default_rng(0).normal(size=(V, 3)), V - 1)
SMALL, LARGE, COUPLED = TreeShape(2, 1, 4), TreeShape(3, 2, 11), TreeShape(3, 1, 9, coupled=True)

CONFIGS = [
    GenerationConfig(),
    GenerationConfig(Sampling(0)),
    GenerationConfig(Sampling(0.9, top_k=6, top_p=0.8), tree=LARGE.name),
    GenerationConfig(tree=SMALL.name, acceptance=Lantern(5, 0.4)),
    GenerationConfig(tree=LARGE.name, acceptance=LanternPlusPlus(5, 3.0), skipping=Uniform(2)),
    GenerationConfig(tree=LARGE.name, skipping=Uniform(3), selector=RandomPath(truncate=False)),
    GenerationConfig(tree=SMALL.name, skipping=Dynamic(-1), selector=SampledPath()),
    GenerationConfig(tree=LARGE.name, skipping=Dynamic(0.05), selector=MostConfidentPath()),
    GenerationConfig(Sampling(0), tree=LARGE.name, acceptance=Lantern(5, 0.6), skipping=Uniform(2)),
    GenerationConfig(tree=SMALL.name, skip_tree=LARGE.name, skipping=Uniform(2), selector=SampledPath()),
    GenerationConfig(tree=LARGE.name, skip_tree=SMALL.name, skipping=Uniform(3)),
    GenerationConfig(tree=SMALL.name, skipping=Share(0.7), selector=SampledPath(temperature=0.5)),
    GenerationConfig(tree=SMALL.name, skip_tree=LARGE.name, skipping=Share(0.4)),
    GenerationConfig(Sampling(0.8), coupled=True),
    GenerationConfig(Sampling(1.0, top_k=5, top_p=0.9), tree=COUPLED.name, coupled=True),
    GenerationConfig(Sampling(0), tree=COUPLED.name, acceptance=Lantern(5, 0.6), coupled=True),
    GenerationConfig(tree=LARGE.name, acceptance=LanternPlusPlus(5, 3.0), coupled=True),
    GenerationConfig(
        tree=COUPLED.name, skip_tree=LARGE.name, acceptance=Lantern(5, 0.4), skipping=Uniform(3), coupled=True
    ),
]


def compare(configs: list[GenerationConfig], guidance: int, seed: int) -> None:
    engines = [ToyEngine(6, V, [SMALL, LARGE, COUPLED], guidance) for _ in range(2)]
    R = len(configs)
    prompts = np.arange(R) + seed
    streams = [UniformStream(seed * 100 + i) for i in range(R)]
    expected, _ = Decoder(engines[0], CODEBOOK).generate({"prompt": prompts}, configs, streams)
    loop = KernelLoop(engines[1], CODEBOOK, configs)
    for i in range(R):
        numbers = np.random.Generator(np.random.PCG64(seed * 100 + i))
        loop.state.give_uniforms(i, numbers.random(loop.state.sizes.uniform_capacity))
    loop.run(prompts)
    assert loop.images().tolist() == expected.tolist()
    assert [loop.state.counter(i, Counter.CURSOR) for i in range(R)] == [stream.used for stream in streams]
    assert sessions_agree(loop.session, engines[0].sessions[0])
    for i in range(R):
        assert loop.committed_tokens(i) == loop.session.committed[i]


@pytest.mark.parametrize("guidance", [1, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_batch_of_every_mode(guidance: int, seed: int) -> None:
    compare(CONFIGS, guidance, seed)


@pytest.mark.parametrize("i", range(len(CONFIGS)))
def test_each_mode_alone(i: int) -> None:
    compare([CONFIGS[i]], 2, 5)
