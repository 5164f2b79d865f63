"""PyTorch modules to ONNX graphs to bundles; the only room that imports torch."""
