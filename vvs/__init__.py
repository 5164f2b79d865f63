"""Speculative decoding with verification skipping for visual autoregressive models.

This package is the algorithm: numpy only, and it knows nothing of ONNX, CUDA or files. The rooms
beside it install under the same name: :mod:`vvs.export` (PyTorch to ONNX and TensorRT),
:mod:`vvs.runtime` (engines to tokens to pixels), :mod:`vvs.benchmarks` and :mod:`vvs.cli`.
"""

from vvs.acceptance import ACCEPTANCE_RULES, AcceptanceRule, Exact, Judgement, Lantern, LanternPlusPlus, walk
from vvs.codebook import Codebook, nearest_codes
from vvs.config import GenerationConfig, override
from vvs.decoding import Decoder, Generation
from vvs.engine import Conditioning, Engine, Session
from vvs.errors import VvsError
from vvs.geometry import Geometry
from vvs.modes import MODES, configure
from vvs.sampling import Sampling, process, sample
from vvs.selection import PATH_SELECTORS, MostConfidentPath, PathSelector, RandomPath
from vvs.skipping import SKIP_POLICIES, Dynamic, Never, Share, SkipPolicy, StepView, Uniform
from vvs.statistics import Span, Statistics, StepKind
from vvs.step import StepEvent, StepRecord
from vvs.tree import DraftTree
from vvs.tree_shape import TreeShape
from vvs.uniforms import RecordedUniforms, UniformStream

__all__ = [
    "ACCEPTANCE_RULES",
    "MODES",
    "PATH_SELECTORS",
    "SKIP_POLICIES",
    "AcceptanceRule",
    "Codebook",
    "Conditioning",
    "Decoder",
    "DraftTree",
    "Dynamic",
    "Engine",
    "Exact",
    "Generation",
    "GenerationConfig",
    "Geometry",
    "Judgement",
    "Lantern",
    "LanternPlusPlus",
    "MostConfidentPath",
    "Never",
    "PathSelector",
    "RandomPath",
    "RecordedUniforms",
    "Sampling",
    "Session",
    "Share",
    "SkipPolicy",
    "Span",
    "Statistics",
    "StepEvent",
    "StepKind",
    "StepRecord",
    "StepView",
    "TreeShape",
    "Uniform",
    "UniformStream",
    "VvsError",
    "configure",
    "nearest_codes",
    "override",
    "process",
    "sample",
    "walk",
]

__version__ = "0.1.0"
