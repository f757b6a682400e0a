"""What `--help` shows: all of what its author wrote."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from turnstile.cli.app import app


def helps(command: Any, name: str = "turnstile") -> Iterator[tuple[str, str]]:
    """Each text of help below a command, with where it stands."""
    yield name, command.help or ""
    yield from ((f"{name} {each.name}", str(getattr(each, "help", None) or "")) for each in command.params)
    for below, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{name} {below}")


def test_no_help_has_what_rich_takes_for_markup() -> None:
    """It leaves out a word in brackets, such as the section of a setting."""
    found = dict(helps(typer.main.get_command(app)))
    assert len(found) > 100
    assert {name: text for name, text in found.items() if re.search(r"\[/?[a-z][\w.]*\]", text)} == {}
