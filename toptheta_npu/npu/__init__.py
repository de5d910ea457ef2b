"""The operators on Ascend NPUs: finding the op package, loading its adapter, choosing what runs.

Importing this package imports neither torch nor torch_npu.
"""
