"""Applies `migrations/NNNN_verb_noun.sql`: forward only, each once, in a transaction, under an advisory lock.

A table holds the applied ones with their checksums. A migration that was edited since, or that this version does not
have, raises an error that names it.
"""

import contextlib
import hashlib
import logging
from dataclasses import dataclass
from importlib import resources
from typing import Any

import asyncpg

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.schema.errors import TurnstileError

log = logging.getLogger(__name__)
_TRIES = 10


class MigrationError(TurnstileError):
    """The database's migrations are not those of this version."""

    code: str = "migration_mismatch"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its name without the suffix, its text and the text's SHA-256."""

    name: str
    sql: str
    checksum: str


def migrations() -> list[Migration]:
    """All migrations of this version, in order."""
    files = resources.files("turnstile.ledger").joinpath("migrations").iterdir()
    texts = sorted((f.name.removesuffix(".sql"), f.read_text("utf-8")) for f in files if f.name.endswith(".sql"))
    return [Migration(name, sql, hashlib.sha256(sql.encode()).hexdigest()) for name, sql in texts]


async def migrate(pool: Pool) -> list[str]:
    """Apply the missing migrations; returns their names.

    Raises `MigrationError` if applied ones differ from this version's, `ServerUnavailable` if the server is down.
    """
    async with pool.connection() as conn:
        await query("lock_migrations").many(conn)
        try:
            missing = await _missing(conn)
            for migration in missing:
                await _apply(conn, migration)
            return [migration.name for migration in missing]
        finally:
            await query("unlock_migrations").many(conn)


async def _apply(conn: Any, migration: Migration) -> None:
    """Apply it in a transaction, again where it deadlocks with what runs meanwhile: then nothing of it was done."""
    for tries in range(1, _TRIES + 1):
        try:
            async with conn.transaction():
                await conn.execute(migration.sql)
                await query("record_migration").many(conn, name=migration.name, checksum=migration.checksum)
        except asyncpg.DeadlockDetectedError:
            if tries == _TRIES:
                raise
            log.warning("migration %s met a deadlock, and is applied again", migration.name)
        else:
            return


async def pending(pool: Pool) -> list[str]:
    """Names of the migrations that the database lacks: all of them if it was never migrated."""
    return [migration.name for migration in await pool.run(_missing)]


async def _missing(conn: Connection) -> list[Migration]:
    known = migrations()
    if not (await query("has_migrations").one(conn))["found"]:
        return known
    here = {migration.name: migration.checksum for migration in known}
    applied: dict[str, str] = {row["name"]: row["checksum"] for row in await query("applied_migrations").many(conn)}
    for name, checksum in applied.items():
        if name not in here:
            raise MigrationError(f"the database has migration {name}, which this version of turnstile does not know")
        if here[name] != checksum:
            raise MigrationError(f"migration {name} was edited after it was applied: restore it and add a new one")
    return [migration for migration in known if migration.name not in applied]


async def probe_storage(pool: Pool) -> None:
    """Store a megabyte and roll it back; raises `ServerUnavailable` with the reason if the server cannot store it.

    A server whose disk is full still answers queries. A role that may make no temporary tables probes nothing.
    """
    with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
        await pool.rehearse(lambda conn: query("store_probe").many(conn))
