"""Tasks of lm-eval: finding them, running them through an attached model, and the local ones."""
