"""Tables of a page, and the tests that its cells name."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

_HELD = re.compile(r"`((?:tests|lab)/[\w/]+\.py)::(test_\w+)`")


def section(page: str, heading: str) -> str:
    """What follows a heading that begins so, until the next heading of its level or above."""
    level = heading.split(maxsplit=1)[0]
    text = page.split(f"\n{heading}", 1)[1]
    return re.split(rf"\n#{{1,{len(level)}}} ", text, maxsplit=1)[0]


def table(text: str, first: str) -> list[list[str]]:
    """The cells of the rows of a text whose first cell begins so, without headings and rules."""
    rows = [line for line in text.splitlines() if line.startswith(f"| {first}")]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    return [c for c in cells if not set("".join(c)) <= set("-| ")][0 if first else 1 :]


def held(cell: str) -> list[str]:
    """The tests that a cell names, as `path::name`."""
    return [f"{path}::{name}" for path, name in _HELD.findall(cell)]


@cache
def tests_of(path: Path) -> dict[str, int]:
    """The tests of a module, and the lines where they begin."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return {each.name: each.lineno for each in found if each.name.startswith("test_")}


def exists(test: str) -> bool:
    """Whether `path::name` is a test."""
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and name in tests_of(ROOT / path)


def source_of(test: str) -> str:
    """The source of the module of a test."""
    assert exists(test), test
    return (ROOT / test.partition("::")[0]).read_text(encoding="utf-8")
