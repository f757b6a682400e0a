"""docs/guarantees.md names a test for each promise, and says which of them only the long run has."""

import re

import pytest

from tests.docs.conformance import exists, held, source_of, table
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
ROWS = [cells for cells in table(PAGE, "") if cells[-1] != "shown by"]


def is_long(test: str) -> bool:
    """Whether every case of the test is left out of the usual run."""
    found = re.search(rf"((?:^@[^\n]*\n)*)^(?:async )?def {test.partition('::')[2]}\(", source_of(test), re.MULTILINE)
    return found is not None and "@pytest.mark.long\n" in found[1]


@pytest.mark.parametrize("cells", ROWS, ids=range(len(ROWS)))
def test_each_promise_has_its_tests(cells: list[str]) -> None:
    tests = held(cells[-1])
    assert tests, f"no test shows: {cells[-2]}"
    assert [test for test in tests if not exists(test)] == []
    assert all(map(is_long, tests)) <= ("(long)" in cells[-1]), f"only the long run shows: {cells[-2]}"


def test_all_promises_are_looked_at() -> None:
    assert len(ROWS) > 25
