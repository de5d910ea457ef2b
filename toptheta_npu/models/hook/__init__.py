"""How a rule gets into a transformers model: the attention function, what hangs on the modules, and the way back."""
