"""Every command that a document has a reader type is one of the program, with these options and arguments."""

import re
import shlex
from functools import cache
from typing import Any

import pytest
import typer

from tests.docs.blocks import Block, every_block
from turnstile.cli.app import app

_ENDS = {"|", "||", "&&", "&", ">", ">>", "<", ";"}


def commands_of(block: Block) -> list[list[str]]:
    """The words after `turnstile` of each command typed in a block, up to where the shell takes over."""
    found: list[list[str]] = []
    for line in re.findall(r"^\$ ((?:.*\\\n)*.*)$", block.text, re.MULTILINE):
        lexer = shlex.shlex(
            re.sub(r"\$\(.*\)", "SAID", line.replace("\\\n", " ")), posix=True, punctuation_chars="|&;<>"
        )
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a text in quotes that goes over several lines
            continue
        for start, word in enumerate(words):
            if word.rpartition("/")[2] == "turnstile" and (start == 0 or words[start - 1] in _ENDS):
                rest = words[start + 1 :]
                end = next((number for number, each in enumerate(rest) if each in _ENDS), len(rest))
                found.append(rest[:end])
    return [words for words in found if not any(word.startswith("[") for word in words)]  # those tell what there is


TYPED = [
    pytest.param(words, id=f"{block.place} {' '.join(words)[:40]}")
    for block in every_block()
    if block.language == "console"
    for words in commands_of(block)
]


@cache
def program() -> Any:
    """The tree of all commands, which takes as long to make as ten commands to parse."""
    return typer.main.get_command(app)


@pytest.mark.parametrize("words", TYPED)
def test_a_command_of_a_document_is_one_of_the_program(words: list[str]) -> None:
    group = program()
    with group.make_context("turnstile", list(words), resilient_parsing=True) as context:
        name, command, rest = group.resolve_command(context, list(words))
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(context, rest)
        parsed, left, _ = command.make_parser(command.context_class(command, info_name=name)).parse_args(list(rest))
    assert left == [], name
    wanted = [param for param in command.params if param.required and param.param_type_name == "argument"]
    assert [each.name for each in wanted if parsed.get(each.name) in (None, ())] == []


def test_there_are_such_commands() -> None:
    assert len(TYPED) > 90
