"""docs/conformance.md: every test and every file that it names is there, and no sentence is held by nothing."""

import re

import pytest

from tests.docs.conformance import exists, held, table
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
_NAMED = re.compile(r"`((?:tests|lab|activities|bridge|docs|ledger|schema|sdk|transport|turnstile|workflows)/[^`]+)`")
_PARTS = re.split(r"\n(?=##+ )", PAGE)
TABLES = {part.splitlines()[0].lstrip("# "): part for part in _PARTS if "\n|---" in part}


@pytest.mark.parametrize("name", TABLES)
def test_each_row_names_tests_or_files_that_exist(name: str) -> None:
    rows = table(TABLES[name], "")
    assert rows
    for cells in rows:
        assert all(cells), cells
        named = _NAMED.findall(cells[-1])
        assert named, f"nothing holds {cells[0]}"
        assert held(cells[-1]) == [each for each in named if "::" in each]
        assert [each for each in named if not (exists(each) if "::" in each else (ROOT / each).is_file())] == []


def test_what_is_not_there_yet_is_said_where_it_is_demanded() -> None:
    """A row that no test holds names the page that says so, or the module that it is about; there is none now."""
    demands = [cells for part in TABLES.values() for cells in table(part, "")]
    without = [cells for cells in demands if not held(cells[-1])]
    assert len(demands) > 2 * len(without)
    assert all("**Not there yet" in cells[0] and "`docs/protocol.md`" in cells[-1] for cells in without)


def test_no_demand_is_written_twice() -> None:
    for name, part in TABLES.items():
        demands = [tuple(cells[:-1]) for cells in table(part, "")]
        assert len(set(demands)) == len(demands), name
