"""Numbers, money and times as people write them; and that no message has a number with an exponent."""

import ast
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import ROOT
from turnstile.schema.amounts import amount, counted

ROOMS = ("activities", "bridge", "gateway", "ledger", "runtime", "sdk", "transport", "turnstile", "workflows")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (-0.0, "0"),
        (7, "7"),
        (1175.0, "1,175"),
        (11_750_000, "11,750,000"),
        (12_345.678, "12,345.7"),
        (3.14159, "3.14"),
        (2.50, "2.5"),
        (0.25, "0.25"),
        (0.000123, "0.00012"),
        (-1200.5, "-1,200.5"),
        (Decimal("1E+4"), "10,000"),
        (None, "–"),
    ],
)
def test_numbers(number: float | Decimal | None, words: str) -> None:
    assert amount(number) == words


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15))
def test_a_number_has_no_exponent_and_is_what_it_was(number: float) -> None:
    shown = amount(number)
    assert "e" not in shown.lower()
    assert float(shown.replace(",", "")) == pytest.approx(number, rel=0.06, abs=1e-12)


def test_one_is_not_many() -> None:
    assert [counted(number, "turn") for number in (0, 1, 1200)] == ["0 turns", "1 turn", "1,200 turns"]
    assert counted(2, "reply", "replies") == "2 replies"


def modules() -> Iterator[Path]:
    """All modules that have messages for people."""
    for room in ROOMS:
        yield from (path for path in (ROOT / room).rglob("*.py") if not path.is_symlink())


def test_no_message_formats_a_number_in_a_way_that_may_have_an_exponent() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None
        for spec in [ast.unparse(node.format_spec).strip("f'\"")]
        if spec[-1:].lower() in ("g", "e")
    ]
    assert wrong == []
