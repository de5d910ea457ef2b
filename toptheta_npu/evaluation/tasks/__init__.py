"""What is scored: perplexity, retrieval in Python source, and tasks of lm-eval."""
