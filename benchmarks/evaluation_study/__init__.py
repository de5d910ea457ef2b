"""Experiments of the paper, repeated on the embedded model."""
