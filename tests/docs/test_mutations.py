"""Each sentence of docs/conformance.md has a mutation that breaks it, which fits the code of today (`lab/conformance`).

That the cited test then fails, `python -m lab.conformance` shows.
"""

import ast
import re

import pytest

from lab.conformance.mutations import MUTATIONS, Mutation
from tests.docs.conformance import exists, held, table
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
_SENTENCES = PAGE[PAGE.index("\n## Agent worker") :]
_PARTS = {part.splitlines()[0].lstrip("# "): part for part in re.split(r"\n(?=##+ )", _SENTENCES) if "\n|---" in part}
ROWS = {(name, cells[0]): held(cells[-1]) for name, part in _PARTS.items() for cells in table(part, "")}
"""The tests that each row cites, by section and sentence."""


def rows_of(mutation: Mutation) -> list[tuple[str, str]]:
    """The rows that the mutation is about: one."""
    return [row for row in ROWS if row[0] == mutation.section and row[1].startswith(mutation.row)]


def named(mutation: Mutation) -> str:
    return f"{mutation.section}-{mutation.row}"


def test_every_sentence_is_broken_once() -> None:
    broken = {row for mutation in MUTATIONS for row in rows_of(mutation)}
    assert len(ROWS) > 100
    assert [row for row in ROWS if row not in broken] == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=named)
def test_a_mutation_breaks_one_row_by_a_test_that_the_row_cites(mutation: Mutation) -> None:
    [row] = rows_of(mutation)
    assert mutation.test in ROWS[row]
    assert exists(mutation.test)
    assert not is_long(mutation.test), "make test leaves it out"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=named)
def test_a_mutation_fits_the_code(mutation: Mutation) -> None:
    before = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert mutation.applied_to(before) != before


def is_long(test: str) -> bool:
    """Whether the test as a whole is marked `long`, by itself or by its module."""
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    [found] = [function for function in functions if function.name == name]
    marks = [each.value for each in tree.body if isinstance(each, ast.Assign) and "pytestmark" in ast.unparse(each)]
    return any(ast.unparse(mark).startswith("pytest.mark.long") for mark in (*found.decorator_list, *marks))
