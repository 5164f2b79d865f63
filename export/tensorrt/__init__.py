"""ONNX to TensorRT: engines built ahead of time beside a bundle's graphs.

Needs no PyTorch and no GPU (TensorRT for RTX; TensorRT itself builds for the GPU at hand). What a runtime
must read of it, names and records of engine files, is ``vvs.runtime.engine_file``; this package may import
the runtime, never the other way round. It runs nothing.
"""
