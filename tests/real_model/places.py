"""Where make real-model puts the model, and where the tests put what they make of it."""

from __future__ import annotations

from tests.markdown import ROOT

FOLDER = ROOT / "build/real-model/smollm2"
GEMMA = ROOT / "build/gemma3"
TABLE = FOLDER.parent / "smollm2.theta"
TEXTS = FOLDER.parent / "texts"
#: Says that there has to be a model: tests that are not collected show nothing.
VARIABLE = "REQUIRE_REAL_MODEL"
