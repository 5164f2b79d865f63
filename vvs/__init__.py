"""Speculative decoding with verification skipping for visual autoregressive models.

This package is the algorithm: numpy only, and it knows nothing of ONNX, CUDA or files. The rooms
beside it install under the same name: :mod:`vvs.export` (PyTorch to ONNX and TensorRT),
:mod:`vvs.runtime` (engines to tokens to pixels), :mod:`vvs.benchmarks` and :mod:`vvs.cli`.
"""

__version__ = "0.1.0"
