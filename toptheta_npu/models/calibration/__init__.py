"""Calibration of a transformers model: in one process, in shards, or over the ranks of a process group."""
