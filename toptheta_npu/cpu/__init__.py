"""The operators on a CPU in C++: built on the machine that runs them, over PyTorch's own threads.

Importing this package loads no compiled code and builds nothing.
"""
