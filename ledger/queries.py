"""Named SQL: read once from the `.sql` files beside the modules, called by name with named parameters.

A query is a block that starts with `-- name: <name> :<mode>`, and a line on what it does. Modes: `one` (exactly one
row), `opt` (one or none), `many`, `exec`. A parameter is written `:name`; the same name is the same parameter.
`{name}` stands for a list of message types (`turnstile.schema.message_types`). There is no SQL text in Python.
"""

import functools
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, Protocol, cast

from turnstile.schema.message_types import TYPE_LISTS

Mode = Literal["one", "opt", "many", "exec"]

_HEADER = re.compile(r"^-- name: (?P<name>[a-z_]+) :(?P<mode>one|opt|many|exec)$", re.MULTILINE)
_PIECE = re.compile(
    r"'[^']*'|(?P<comment>--[^\n]*)|(?<![:\w]):(?P<parameter>[a-z_]+)\b|\{(?P<types>" + "|".join(TYPE_LISTS) + r")\}"
)
"""A quoted text, which stays; a comment, which goes; a parameter, which gets a number; a list of types, written out."""

Row = Mapping[str, Any]
"""A row by column name; every caller validates it into a model."""


class Again(Exception):
    """A statement saw an old picture and changed nothing: run it again on a fresh one."""


class Connection(Protocol):
    """The part of an asyncpg connection that queries use."""

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        """All rows."""
        ...


class Cursors(Protocol):
    """The part of an asyncpg connection that reads rows through a cursor; needs a transaction."""

    def cursor(self, query: str, *args: Any, prefetch: int, timeout: float) -> AsyncIterator[Any]:
        """Yields the rows, `prefetch` per round trip."""
        ...


@dataclass(frozen=True, slots=True)
class Query:
    """A named statement; `parameters` are in the order of their numbers."""

    name: str
    mode: Mode
    sql: str
    parameters: tuple[str, ...]
    purpose: str

    async def many(self, conn: Connection, **arguments: Any) -> list[Row]:
        """All rows."""
        values = self._values(arguments)
        return cast("list[Row]", await conn.fetch(self.sql, *values))

    def stream(self, conn: Cursors, *, prefetch: int, timeout: float, **arguments: Any) -> AsyncIterator[Row]:
        """Yields the rows, `prefetch` per round trip, each of which may take `timeout` seconds."""
        return conn.cursor(self.sql, *self._values(arguments), prefetch=prefetch, timeout=timeout)

    def _values(self, arguments: dict[str, Any]) -> list[Any]:
        if arguments.keys() != set(self.parameters):
            wrong = sorted(arguments.keys() ^ set(self.parameters))
            raise TypeError(f"query {self.name}: missing or unknown parameters {wrong}")
        return [arguments[name] for name in self.parameters]

    async def opt(self, conn: Connection, **arguments: Any) -> Row | None:
        """The row, or None if there is none."""
        rows = await self.many(conn, **arguments)
        return rows[0] if rows else None

    async def one(self, conn: Connection, **arguments: Any) -> Row:
        """The one row; raises `LookupError` if there is none."""
        row = await self.opt(conn, **arguments)
        if row is None:
            raise LookupError(f"query {self.name} gave no row")
        return row


def parse(text: str) -> dict[str, Query]:
    """The queries of one file."""
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    return {header["name"]: _query(header, text[header.end() : end]) for header, end in zip(headers, ends, strict=True)}


def _query(header: re.Match[str], body: str) -> Query:
    purpose = " ".join(line[3:] for line in body.strip().splitlines() if line.startswith("-- "))
    numbers: dict[str, int] = {}

    def replace(found: re.Match[str]) -> str:
        if found["comment"]:
            return ""
        if found["types"]:
            return "(" + ", ".join(f"'{each}'" for each in TYPE_LISTS[found["types"]]) + ")"
        if (parameter := found["parameter"]) is None:
            return found[0]
        return f"${numbers.setdefault(parameter, len(numbers) + 1)}"

    sql = _PIECE.sub(replace, body).strip().rstrip(";")
    return Query(header["name"], cast("Mode", header["mode"]), sql, tuple(numbers), purpose)


_ROOMS = (".", "turns", "pump", "operations")


@functools.cache
def all_queries() -> Mapping[str, Query]:
    """Every named query of the ledger."""
    found: dict[str, Query] = {}
    for room in _ROOMS:
        files = resources.files("turnstile.ledger").joinpath(room).iterdir()
        for file in sorted((each for each in files if each.name.endswith(".sql")), key=lambda each: each.name):
            for name, query in parse(file.read_text("utf-8")).items():
                if name in found:
                    raise ValueError(f"query {name} is defined twice")
                found[name] = query
    return found


def query(name: str) -> Query:
    """The query of this name."""
    return all_queries()[name]
