"""Models in llama.cpp's GGUF files, made into folders of transformers."""
