"""Times decode steps, for ``toptheta benchmark`` and ``toptheta verify``: shapes, inputs, contenders, clocks, reports.

Imports nothing, so that the command line starts fast.
"""
