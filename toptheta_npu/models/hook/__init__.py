"""Put a selection rule into a transformers model and take it out again: attention function, module state, restore."""
