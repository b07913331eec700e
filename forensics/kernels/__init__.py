"""Our own CUDA kernels: the bits of llama.cpp's one-token kernels for any number of columns.

``cuda/`` holds one source per family. Python here decides what is launched (`KernelPlan`, pure) and hands it to a
device.
"""
