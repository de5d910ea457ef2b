"""Checks for the first hour on a device (``toptheta verify``): assumptions, times, and constants of the timing model.

Imports nothing, so that the command line starts fast.
"""
