"""The page of failure cases has every kind, and every test it names exists."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "explanation" / "failure-cases.md").read_text()
KINDS = (TESTS / "corpus" / "kinds.txt").read_text().split()
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]


def test_every_kind_has_its_row_and_no_other_has_one() -> None:
    assert sorted(row[0].strip("`") for row in ROWS) == sorted(KINDS)


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip("`") for row in ROWS])
def test_what_a_row_names_is_there(row: list[str]) -> None:
    kind, wrong, here, held = row
    assert wrong.endswith(".")
    assert here.endswith(".")
    named = re.findall(r"`([\w/]+\.py)::(\w+\*?)`", held)
    assert named or here.startswith("Not built yet"), kind
    assert len(named) == held.count("::")
    for file, pattern in named:
        names = re.findall(r"^(?:async )?def (test_\w+)", (TESTS / file).read_text(), re.MULTILINE)
        assert any(fnmatchcase(name, pattern) for name in names), f"{file}::{pattern}"


def test_tests_of_a_kind_are_named_by_its_row() -> None:
    """A test that begins with the name of a kind belongs to that kind's row."""
    held = {row[0].strip("`"): row[3] for row in ROWS}
    for file in sorted(TESTS.rglob("test_cases_*.py")):
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE):
            kinds = [kind for kind in KINDS if name.startswith(f"test_{kind.replace('-', '_')}_")]
            for kind in kinds:
                patterns = re.findall(rf"`{file.relative_to(TESTS).as_posix()}::(\w+\*?)`", held[kind])
                assert any(fnmatchcase(name, pattern) for pattern in patterns), f"{kind}: {file.name}::{name}"
