"""The type check against a toolkit's headers lies with the tests of the host model; it is used here, too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "emulator"))
