"""The operators on Ascend NPUs: find the op package, load its adapter, choose the backend.

Importing this package imports neither torch nor torch_npu.
"""
