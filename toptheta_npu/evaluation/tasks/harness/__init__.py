"""Tasks of lm-eval: find them, run them on a model within `sparsify`, and define local ones."""
