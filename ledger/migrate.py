"""Makes the ledger's schema, and brings the schema of a database up to this version.

An empty database gets all of `tables/`, `views/` and `functions/` in one transaction, each file after those that define
what it names. A database that has them gets the missing `migrations/NNNN_verb_noun.sql`, each once and in a transaction
of its own, and then, in one more, the views and functions whose file has another checksum than the one applied last.
`state.schema_files` records every file with its checksum. One migrator runs at a time, under an advisory lock.

A table's file is applied to empty databases only: a migration makes the same change elsewhere
(`migrations/README.md` has the rules). A database whose tables are not those of this version, or whose migrations were
edited or are unknown here, raises `MigrationError`, which says what to do.
"""

import contextlib
import graphlib
import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import asyncpg

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.schema.errors import TurnstileError

log = logging.getLogger(__name__)
_TRIES = 10
_DEFINITION: Final = re.compile(
    r"^ *CREATE (?:OR REPLACE )?(?:SCHEMA|TABLE|VIEW|FUNCTION|TYPE|SEQUENCE) (?:IF NOT EXISTS )?([\w.]+)", re.MULTILINE
)
_NAME: Final = re.compile(r"\w+\.\w+|\w+(?=\.)")
_COMMENT: Final = re.compile(r"--[^\n]*")
_BODY: Final = re.compile(r"\bAS \$\$.*?\$\$", re.DOTALL)
_BEFORE = "was made by a development version that this one cannot upgrade"
_HOW = "export its projects with that version (`turnstile export`), and begin with an empty database"


class MigrationError(TurnstileError):
    """The database's schema is not the one of this version."""

    code: str = "migration_mismatch"


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """One file: its folder and its name without the suffix (`tables/cards`), and its text."""

    name: str
    sql: str

    @property
    def folder(self) -> str:
        """`tables`, `views`, `functions` or `migrations`."""
        return self.name.partition("/")[0]

    @property
    def checksum(self) -> str:
        """The text's SHA-256; of a table's file, which is not applied again, without comments and white space."""
        text = " ".join(_COMMENT.sub("", self.sql).split()) if self.folder == "tables" else self.sql
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def outside(self) -> str:
        """The text without comments and without the bodies of functions, which may name what is made later."""
        return _BODY.sub("", _COMMENT.sub("", self.sql))


@dataclass(frozen=True, slots=True)
class _Missing:
    """What a database lacks: everything if it is empty, else migrations and then views and functions."""

    is_empty: bool
    migrations: list[SchemaFile]
    files: list[SchemaFile]

    @property
    def names(self) -> list[str]:
        return [file.name for file in (*self.migrations, *self.files)]


def schema_files() -> list[SchemaFile]:
    """The files of tables, views and functions, each after those that define what it names."""
    files = {file.name: file for folder in ("tables", "views", "functions") for file in _read(folder)}
    defined = {name: file for file in files.values() for name in _DEFINITION.findall(file.outside)}
    needs: dict[str, list[str]] = {}
    for file in files.values():
        words = _NAME.findall(file.outside)
        named = {defined[word].name for name in words for word in (name, name.partition(".")[0]) if word in defined}
        needs[file.name] = sorted(named - {file.name})
    return [files[name] for name in graphlib.TopologicalSorter(needs).static_order()]


def migrations() -> list[SchemaFile]:
    """The migrations of this version, in order."""
    return _read("migrations")


def _read(folder: str) -> list[SchemaFile]:
    files = resources.files("turnstile.ledger").joinpath(folder).iterdir()
    texts = sorted((file.name.removesuffix(".sql"), file) for file in files if file.name.endswith(".sql"))
    return [SchemaFile(f"{folder}/{name}", file.read_text("utf-8")) for name, file in texts]


async def migrate(pool: Pool) -> list[str]:
    """Bring the schema up to date; returns the names of the files that were applied, in their order.

    Raises `MigrationError` if the database is not one of this version's, `ServerUnavailable` if the server is down.
    """
    async with pool.connection() as conn:
        await query("lock_schema").many(conn)
        try:
            missing = await _missing(conn)
            if missing.is_empty:
                await _apply(conn, missing.files, recorded=migrations())
                return missing.names
            tables = [file for file in schema_files() if file.folder == "tables"]
            for migration in missing.migrations:
                last = migration is missing.migrations[-1]
                await _apply(conn, [migration], recorded=tables if last else [])
            await _apply(conn, missing.files)
            return missing.names
        finally:
            await query("unlock_schema").many(conn)


async def _apply(conn: Any, files: list[SchemaFile], *, recorded: list[SchemaFile] | None = None) -> None:
    """Apply files in a transaction and record them, and others with them.

    Applied again where it deadlocks with what runs meanwhile: then nothing of it was done.
    """
    for tries in range(1, _TRIES + 1):
        try:
            async with conn.transaction():
                await query("leave_bodies_unchecked").many(conn)
                for file in files:
                    await conn.execute(file.sql)
                for file in (*files, *(recorded or ())):
                    await query("record_schema_file").many(conn, name=file.name, checksum=file.checksum)
        except asyncpg.DeadlockDetectedError:
            if tries == _TRIES:
                raise
            log.warning("%s met a deadlock, and is applied again", ", ".join(file.name for file in files))
        else:
            return


async def pending(pool: Pool) -> list[str]:
    """Names of the files that `migrate` would apply: all of them if the database is empty."""
    return (await pool.run(_missing)).names


async def check_schema(pool: Pool) -> None:
    """Raise `MigrationError` unless the database has the schema of this version."""
    if missing := await pending(pool):
        first = missing[0]
        raise MigrationError(
            f"{pool.server} lacks {len(missing)} files of its schema, the first {first}: run `turnstile migrate`"
        )


async def _missing(conn: Connection) -> _Missing:
    state = await query("find_schema").one(conn)
    if state["is_of_before"]:
        raise MigrationError(f"the database {_BEFORE}: {_HOW}")
    if not state["is_there"]:
        return _Missing(True, [], schema_files())
    applied = {row["name"]: row["checksum"] for row in await query("applied_schema_files").many(conn)}
    missing = _missing_migrations(applied)
    changed = [file for file in schema_files() if applied.get(file.name) != file.checksum]
    tables = ", ".join(file.name for file in changed if file.folder == "tables")
    if tables and not missing:
        raise MigrationError(f"the database {_BEFORE} ({tables} differ, and no migration is new): {_HOW}")
    return _Missing(False, missing, [file for file in changed if file.folder != "tables"])


def _missing_migrations(applied: Mapping[str, str]) -> list[SchemaFile]:
    known = {migration.name: migration for migration in migrations()}
    for name, checksum in applied.items():
        if name.startswith("migrations/") and name not in known:
            raise MigrationError(f"the database has {name}, which this version of turnstile does not know")
        if name in known and known[name].checksum != checksum:
            raise MigrationError(f"{name} was edited after it was applied: restore it and add a new one")
    return [migration for name, migration in known.items() if name not in applied]


async def probe_storage(pool: Pool) -> None:
    """Store a megabyte and roll it back; raises `ServerUnavailable` with the reason if the server cannot store it.

    A server whose disk is full still answers queries. A role that may make no temporary tables probes nothing.
    """
    with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
        await pool.rehearse(lambda conn: query("store_probe").many(conn))
