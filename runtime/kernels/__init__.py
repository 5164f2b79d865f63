"""The CUDA kernels of the device-resident loop: sources, parameters, and two ways to compile them."""
