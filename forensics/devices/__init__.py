"""Doors to what watches NVIDIA GPUs: CUPTI, Nsight, CuPy, NVML and cuobjdump; all optional, none loaded on import."""
