"""Puts a selection rule into a transformers model and takes it out again: attention function, module state, restore."""
