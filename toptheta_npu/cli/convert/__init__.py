"""``toptheta convert``: converts threshold files, and GGUF models into transformers folders."""
