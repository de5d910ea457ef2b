"""``python -m toptheta_npu`` is the command ``toptheta``."""

from toptheta_npu.cli import main

main()
