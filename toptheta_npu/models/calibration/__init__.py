"""Calibrates a transformers model: observes its attention scores over texts and makes a table of thresholds."""
