"""The first hour on a device behind ``toptheta verify``: points to confirm, times, and the constants of the model.

Nothing is imported here, so that the command line stays quick to start.
"""
