"""``python -m toptheta_npu`` is the command ``toptheta``."""

from .cli import main

main()
