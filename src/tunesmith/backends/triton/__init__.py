"""Kernels in Triton: compiled in child processes for the types of a call, launched past Triton's own Python."""
