"""Attention by thresholds or another rule within a context: `sparsify`, `apply_selection` and what they record."""
