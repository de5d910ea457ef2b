"""Times decode steps, for ``toptheta benchmark`` and ``toptheta verify``: shapes, inputs, contenders, clocks, reports.

Nothing is imported here, so that the command line stays quick to start.
"""
