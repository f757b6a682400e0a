"""What commands and `--help` print at 60 and 80 columns: no word is broken, and what is cut says so."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnstile.cli.app import app
from turnstile.cli.output import Output

WORD = st.text("abcdefgh-_/0123456789", min_size=1, max_size=48)
CELL = st.lists(WORD, min_size=1, max_size=12).map(" ".join)
TABLES = st.integers(1, 11).flatmap(
    lambda columns: st.lists(st.lists(CELL, min_size=columns, max_size=columns), min_size=1, max_size=4)
)
LIGHT = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def words(text: str) -> list[str]:
    """The words of what was printed, without lines of tables."""
    return re.sub(r"[│┃┏┓┗┛━┳┻╇┡┩└┘─┴┬╋]", " ", text).split()


def prints(width: int, monkeypatch: pytest.MonkeyPatch) -> Output:
    """An output of this width."""
    monkeypatch.setenv("COLUMNS", str(width))
    return Output(as_json=False)


@pytest.mark.parametrize("width", [60, 80])
@given(rows=TABLES, cut=st.booleans())
@LIGHT
def test_a_table_breaks_no_word(
    width: int, rows: list[list[str]], cut: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"column{place}" for place in range(len(rows[0]))]
    prints(width, monkeypatch).table("a title", names, rows, cut=names[-1] if cut else "")
    said = capsys.readouterr().out
    shown = words(said)
    whole = {*names, "a", "title", *(word for row in rows for cell in row for word in cell.split())}
    assert [word for word in shown if word not in whole and not (cut and word.endswith("…"))] == []
    longest = max(map(len, whole))
    assert all(len(line) <= max(width, longest + len("column10") + 2) for line in said.splitlines())
    if not cut:
        assert all(
            shown.count(word) >= sum(cell.split().count(word) for row in rows for cell in row)
            for word in whole - {*names, "a", "title"}
        )


@pytest.mark.parametrize("width", [60, 80])
@given(name=WORD, text=st.lists(CELL, min_size=1, max_size=4).map("\n".join))
@LIGHT
def test_facts_lines_and_texts_break_no_word(
    width: int, name: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = prints(width, monkeypatch)
    out.facts("title", {name: text})
    out.line(" ".join(text.split()), note=name)
    out.indented(text)
    out.remark(text)
    said = capsys.readouterr()
    assert words(said.out) == ["title", name, *text.split(), *text.split(), name, *text.split()]
    assert words(said.err) == text.split()


def helps(command: Any, name: str = "turnstile") -> Iterator[tuple[str, str]]:
    """Each text of help below a command, with where it stands."""
    yield name, command.help or ""
    yield from ((f"{name} {param.name}", str(getattr(param, "help", None) or "")) for param in command.params)
    for below, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{name} {below}")


def test_no_help_has_what_rich_takes_for_markup() -> None:
    """It leaves out a word in brackets, such as the section of a setting."""
    found = dict(helps(typer.main.get_command(app)))
    assert len(found) > 100
    assert {name: text for name, text in found.items() if re.search(r"\[/?[a-z][\w.]*\]", text)} == {}
