"""The kernel speed comparison behind ``toptheta benchmark``: shapes, inputs, contenders, clocks, reports.

Nothing is imported here, so that the command line stays quick to start.
"""
