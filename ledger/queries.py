"""Named SQL: read once from the `.sql` files beside the modules, called by name with named parameters.

A query is a block that starts with `-- name: <name> :<mode>`, and a line on what it does. Modes: `one` (exactly one
row), `opt` (one or none), `many`, `exec`. A parameter is written `:name`; the same name is the same parameter.
`{name}` or `{name(argument, …)}` stands for a fragment: one of `fragments.sql`, or a list of message types
(`turnstile.schema.message_types`). There is no SQL text in Python.

The server prepares each node of a plan at each execution, also where nothing comes of it. So a statement may have
variants, `-- variant: <name>, without <part>, …`, for callers who know that a request needs none of these parts: lines
between `-- only for <part>` and `-- end` are left out, or replaced by those after `-- else`.
"""

import functools
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, Protocol, TypeVar, cast

from pydantic import BaseModel

from turnstile.schema.message_types import TYPE_LISTS

Model = TypeVar("Model", bound=BaseModel)
Mode = Literal["one", "opt", "many", "exec"]

_HEADER = re.compile(r"^-- name: (?P<name>[a-z_]+) :(?P<mode>one|opt|many|exec)$", re.MULTILINE)
_FRAGMENT = re.compile(r"^-- fragment: ([a-z_]+)(?:\(([a-z_, ]+)\))?\n((?:.+\n)+)", re.MULTILINE)
_PIECE = re.compile(
    r"'[^']*'|(?P<comment>--[^\n]*)|(?<![:\w]):(?P<parameter>[a-z_]+)\b"
    r"|\{(?P<fragment>[a-z_]+)(?:\((?P<arguments>[^{}]*)\))?\}"
)
"""A quoted text, which stays; a comment, which goes; a parameter, which gets a number; a fragment, written out."""
_VARIANT = re.compile(r"^-- variant: (?P<name>[a-z_]+), without (?P<parts>[a-z_, ]+)\n", re.MULTILINE)
_PART = re.compile(
    r"^-- only for (?P<part>[a-z_]+)\n(?P<body>.*?)(?:^-- else\n(?P<instead>.*?))?^-- end\n", re.MULTILINE | re.DOTALL
)
_ARGUMENT = re.compile(r"(?:'[^']*'|\([^()]*\)|[^,()'])+")

Row = Mapping[str, Any]
"""A row by column name; callers validate it."""


class Again(Exception):
    """A statement saw an old snapshot and changed nothing: run it again."""


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
    variant_of: str | None = None
    """The statement whose text it is made of, without some parts."""

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

    async def opt_of(self, conn: Connection, arguments: Mapping[str, Any]) -> Row | None:
        """The row, or None: of a variant, which takes of the whole statement's arguments those that it has."""
        return await self.opt(conn, **{name: arguments[name] for name in self.parameters})

    async def all_as(self, conn: Connection, model: type[Model], /, **arguments: Any) -> list[Model]:
        """All rows, each validated."""
        return [model.model_validate(dict(row)) for row in await self.many(conn, **arguments)]

    async def opt_as(self, conn: Connection, model: type[Model], /, **arguments: Any) -> Model | None:
        """The row, validated, or None if there is none."""
        row = await self.opt(conn, **arguments)
        return None if row is None else model.model_validate(dict(row))

    async def one_as(self, conn: Connection, model: type[Model], /, **arguments: Any) -> Model:
        """The one row, validated; raises `LookupError` if there is none."""
        return model.model_validate(dict(await self.one(conn, **arguments)))


def parse(text: str) -> dict[str, Query]:
    """The queries of one file."""
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    queries: dict[str, Query] = {}
    for header, end in zip(headers, ends, strict=False):
        body = text[header.end() : end]
        mode, whole = cast("Mode", header["mode"]), _VARIANT.sub("", body)
        queries[header["name"]] = _query(header["name"], mode, _without(whole, frozenset()), None)
        for variant in _VARIANT.finditer(body):
            parts = frozenset(re.findall("[a-z_]+", variant["parts"]))
            if unknown := parts - {part["part"] for part in _PART.finditer(whole)}:
                raise ValueError(f"query {header['name']} has no parts {sorted(unknown)}")
            queries[variant["name"]] = _query(variant["name"], mode, _without(whole, parts), header["name"])
    return queries


def _without(body: str, parts: frozenset[str]) -> str:
    """The text without these of its parts."""
    return _PART.sub(lambda part: (part["instead"] or "") if part["part"] in parts else part["body"], body)


def _query(name: str, mode: Mode, body: str, variant_of: str | None) -> Query:
    purpose = " ".join(line[3:] for line in body.strip().splitlines() if line.startswith("-- "))
    numbers: dict[str, int] = {}

    def replace(piece: re.Match[str]) -> str:
        if piece["comment"]:
            return ""
        if piece["fragment"]:
            return _PIECE.sub(replace, _fragment(piece["fragment"], _ARGUMENT.findall(piece["arguments"] or "")))
        if (parameter := piece["parameter"]) is None:
            return piece[0]
        return f"${numbers.setdefault(parameter, len(numbers) + 1)}"

    sql = _PIECE.sub(replace, body).strip().rstrip(";")
    return Query(name, mode, sql, tuple(numbers), purpose, variant_of)


def _fragment(name: str, arguments: list[str]) -> str:
    if name not in _fragments():
        raise ValueError(f"there is no fragment {name}")
    parameters, sql = _fragments()[name]
    if len(arguments) != len(parameters):
        raise ValueError(f"fragment {name} takes {len(parameters)} arguments, not {len(arguments)}")
    for parameter, argument in zip(parameters, arguments, strict=True):
        sql = sql.replace(f"{{{parameter}}}", argument.strip())
    return sql


@functools.cache
def _fragments() -> Mapping[str, tuple[list[str], str]]:
    """The parameters and the text of each fragment."""
    text = resources.files("turnstile.ledger").joinpath("fragments.sql").read_text("utf-8")
    fragments = {name: (re.findall("[a-z_]+", parameters), sql) for name, parameters, sql in _FRAGMENT.findall(text)}
    for name, types in TYPE_LISTS.items():
        fragments[name] = ([], "(" + ", ".join(f"'{t}'" for t in types) + ")")
    return fragments


_ROOMS = (".", "turns", "budgets", "trees", "people", "delegation", "pump", "pushes", "files", "operations", "access")


@functools.cache
def all_queries() -> Mapping[str, Query]:
    """Every named query of the ledger."""
    queries: dict[str, Query] = {}
    for room in _ROOMS:
        files = resources.files("turnstile.ledger").joinpath(room).iterdir()
        for file in sorted((f for f in files if f.name.endswith(".sql")), key=lambda f: f.name):
            for name, query in parse(file.read_text("utf-8")).items():
                if name in queries:
                    raise ValueError(f"query {name} is defined twice")
                queries[name] = query
    return queries


def query(name: str) -> Query:
    """The query of this name."""
    return all_queries()[name]
