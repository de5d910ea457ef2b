"""The tasks: perplexity, retrieval in Python source, and tasks of lm-eval."""
