"""The Triton backend for CUDA tensors. Importing this package imports no Triton; `operators` does."""
