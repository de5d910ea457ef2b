"""Write the table of how long the tests take, file by file, from pytest's reports: make durations."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

PAGE = Path(__file__).with_name("durations.md")
_HEAD = """# How long the tests take

Seconds of one worker, set-up included, most first; files below half a second are summed up. `make durations` writes
this table. {total}

| file | make test: tests | seconds | make test-all, beyond it: tests | seconds |
| --- | ---: | ---: | ---: | ---: |
"""


def table(quick: list[Path], rest: list[Path]) -> str:
    """The page, from the reports of `make test` and of what `make test-all` runs beyond it."""
    count: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for column, files in enumerate((quick, rest)):
        for file in files:
            for test in ElementTree.parse(file).getroot().iter("testcase"):
                if test.find("skipped") is None:
                    name = _file_of(test, file)
                    count[name][column] += 1
                    seconds[name][column] += float(test.get("time", "0"))
    for name in [name for name, spent in seconds.items() if sum(spent) < 0.5]:
        for column in (0, 1):
            count["all other files"][column] += count[name][column]
            seconds["all other files"][column] += seconds[name][column]
        del count[name], seconds[name]
    sums = [(sum(n[c] for n in count.values()), sum(s[c] for s in seconds.values())) for c in (0, 1)]
    total = " ".join(f"{what}: {n} tests, {s:.0f} s." for what, (n, s) in zip(("Test", "Beyond"), sums, strict=True))
    rows = sorted(seconds, key=lambda name: -sum(seconds[name]))
    return _HEAD.format(total=total) + "".join(
        f"| {name} | {count[name][0]} | {seconds[name][0]:.1f} | {count[name][1]} | {seconds[name][1]:.1f} |\n"
        for name in rows
    )


def _file_of(test: ElementTree.Element, report: Path) -> str:
    folder = "emulator/" if report.stem.endswith("-emulator") else ""  # whose reports start there
    return folder + test.get("classname", "").replace(".", "/") + ".py"


if __name__ == "__main__":
    reports = [Path(name) for name in sys.argv[1:]]
    PAGE.write_text(table(*([file for file in reports if tier in file.name] for tier in ("quick", "full"))))
    print(f"wrote {PAGE.name}")
