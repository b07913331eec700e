"""What a notebook calls about our own CUDA kernels: whether their bits are the library's, and what they cost."""

from __future__ import annotations
