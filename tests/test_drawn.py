"""The table of drawn calls: what a test has drawn, on which backend, and that a wrong answer shows."""

from __future__ import annotations

from pathlib import Path

from tests.drawn import PAGE, table

_TEST = (
    '<testcase classname="tests.{folder}.test_cases" name="{name}"><properties>{drawn}</properties>{verdict}</testcase>'
)


def report(tmp_path: Path, *tests: tuple[str, str, dict[str, int], str]) -> Path:
    """A report of pytest, of tests by folder, name, what they have drawn, and verdict."""
    cases = "".join(
        _TEST.format(
            folder=folder, name=name, verdict=verdict,
            drawn="".join(f'<property name="drawn {kind}" value="{count}" />' for kind, count in drawn.items()),
        )
        for folder, name, drawn, verdict in tests
    )  # fmt: skip
    file = tmp_path / "drawn.xml"
    file.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return file


def rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("|")][2:]


def test_calls_of_a_backend_are_summed_up(tmp_path: Path) -> None:
    file = report(
        tmp_path,
        ("op_kernel", "test_one_way", {"calls": 5, "int8": 2}, ""),
        ("op_kernel", "test_another", {"calls": 7, "tokens": 3, "paged": 1}, ""),
        ("op_kernel", "test_that_draws_nothing", {}, ""),
        ("fallback", "test_backend[native]", {"calls": 4}, ""),
        ("fallback", "test_backend[fallback]", {"calls": 6}, ""),
    )
    assert rows(table([file])) == [
        "| fallback | all of them | 6 | 0 | 0 | 0 |  |",
        "| host model | all of them | 12 | 2 | 3 | 1 |  |",
        "| native CPU kernel | all of them | 4 | 0 | 0 | 0 |  |",
        "| fallback | backend (fallback) | 6 | 0 | 0 | 0 |  |",
        "| host model | another | 7 | 0 | 3 | 1 |  |",
        "| host model | one way | 5 | 2 | 0 | 0 |  |",
        "| native CPU kernel | backend (native) | 4 | 0 | 0 | 0 |  |",
    ]


def test_a_wrong_answer_shows(tmp_path: Path) -> None:
    file = report(tmp_path, ("npu", "test_cases", {"calls": 3}, "<failure />"))
    assert rows(table([file]))[-1] == "| emulated NPU | cases | 3 | 0 | 0 | 0 | **wrong** |"


def test_backends_without_new_calls_keep_their_rows(tmp_path: Path) -> None:
    before = table(
        [
            report(
                tmp_path,
                ("npu", "test_cases", {"calls": 3, "int8": 1}, ""),
                ("fallback", "test_cases", {"calls": 4}, "<failure />"),
            )
        ]
    )
    after = table([report(tmp_path, ("fallback", "test_cases", {"calls": 9}, ""))], before)
    assert rows(after) == [
        "| emulated NPU | all of them | 3 | 1 | 0 | 0 |  |",
        "| fallback | all of them | 9 | 0 | 0 | 0 |  |",
        "| emulated NPU | cases | 3 | 1 | 0 | 0 |  |",
        "| fallback | cases | 9 | 0 | 0 | 0 |  |",
    ]
    assert table([], PAGE.read_text()) == PAGE.read_text()
