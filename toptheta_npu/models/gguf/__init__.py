"""Models in llama.cpp's GGUF files, made into folders of transformers."""

from .convert import convert_gguf
from .header import Header

__all__ = ["Header", "convert_gguf"]
