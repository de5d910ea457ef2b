"""Write the table of how many drawn calls each backend has answered, from pytest's reports: make explore.

Rows of backends that the reports say nothing of stay as they are.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).with_name("drawn.md")
#: Of the test that runs, the calls that were drawn, by what is in them.
DRAWN: Counter[str] = Counter()
#: What runs where, by the folder of a test, or by what stands in its brackets.
_FOLDERS = {"tests/op_kernel": "host model", "tests/npu": "emulated NPU", "tests/cpu": "native CPU kernel"}
_KINDS = ("calls", "int8", "tokens", "paged")
_HEAD = """# What drawn calls have found

Calls that nobody thought of, from [random_cases.py](random_cases.py), against the float64 oracle: any layout, lengths,
pages, thresholds, compensation, caches and query tokens. `make explore` draws new ones and writes this table. A call
counts where its inputs have a gap for the threshold; *int8*, *several tokens* and *paged* say how many of them were
that. A test ends at the first wrong answer or finding of the host model.

| backend | test | calls | int8 | several tokens | paged | |
| --- | --- | ---: | ---: | ---: | ---: | --- |
"""


def table(files: Iterable[Path], before: str = "") -> str:
    """The page, from reports of tests with the marker "drawn", and from the page that it takes the place of."""
    rows: list[str] = []
    sums: dict[str, Counter[str]] = {}
    for file in files:
        for test in ElementTree.parse(file).getroot().iter("testcase"):
            found = _drawn(test)
            if not found:
                continue
            name, _, level = test.get("name", "").removeprefix("test_").partition("[")
            backend, is_wrong = _backend(test), test.find("failure") is not None or test.find("error") is not None
            told = name.replace("_", " ") + (f" ({level.removesuffix(']')})" if level else "")
            rows.append(_row(backend, told, found, "**wrong**" if is_wrong else ""))
            sums.setdefault(backend, Counter()).update(found)
    totals = [_row(backend, "all of them", found, "") for backend, found in sums.items()]
    for line in before.removeprefix(_HEAD).splitlines(keepends=True):
        backend, name = line.split(" | ")[:2]
        if backend.removeprefix("| ") not in sums:
            (totals if name == "all of them" else rows).append(line)
    return _HEAD + "".join(sorted(totals)) + "".join(sorted(rows))


def _drawn(test: ElementTree.Element) -> Counter[str]:
    """What a test has drawn, by kind."""
    given = ((p.get("name", ""), p.get("value", "0")) for p in test.iter("property"))
    return Counter({name.removeprefix("drawn "): int(value) for name, value in given if name.startswith("drawn ")})


def _backend(test: ElementTree.Element) -> str:
    folder = "/".join(test.get("classname", "").split(".")[:2])
    if folder in _FOLDERS:
        return _FOLDERS[folder]
    return "native CPU kernel" if "[native" in test.get("name", "") else "fallback"


def _row(backend: str, name: str, found: Counter[str], verdict: str) -> str:
    return f"| {backend} | {name} | " + " | ".join(str(found[kind]) for kind in _KINDS) + f" | {verdict} |\n"


if __name__ == "__main__":
    PAGE.write_text(table((Path(name) for name in sys.argv[1:]), PAGE.read_text()))
    print(f"wrote {PAGE.name}")
