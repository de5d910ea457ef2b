"""The operators on a CPU in C++, compiled on first use. They run on PyTorch's own threads.

Importing this package loads no compiled code and builds nothing.
"""
