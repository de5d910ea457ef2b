"""Contexts that make attention sparse: `sparsify`, `apply_selection`, and the statistics that they record."""
