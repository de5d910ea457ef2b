"""Convert models from llama.cpp's GGUF files into transformers folders."""
