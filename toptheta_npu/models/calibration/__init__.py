"""Calibration of a transformers model: observe its attention scores over texts, and make a table of thresholds."""
