"""What bridges and workers may do in the ledger, where they log in as roles of their own (docs/security.md).

`grants.sql` is the list. Granting is idempotent and takes away what a role held beyond it, in one transaction, so
that running processes see the one or the other.
"""

from collections.abc import Sequence

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.schema.errors import ConfigError


async def grant(pool: Pool, *, bridge_role: str = "", worker_role: str = "") -> list[str]:
    """Give the roles their rights, after `migrate` and as the owner of the tables; returns the roles.

    An empty name is no role; one name for both gets the rights of both. Raises `ConfigError` for a role that is not
    there, or that owns the tables: it has all rights, and would lose them. `ServerUnavailable`: as in `migrate`.
    """
    roles = sorted({bridge_role, worker_role} - {""})
    if not roles:
        return []
    async with pool.connection() as conn:
        await _check(conn, roles)
        await query("lock_migrations").many(conn)
        try:
            async with conn.transaction():
                wanted = {"bridge_role": bridge_role or None, "worker_role": worker_role or None}
                for row in await query("list_grants").many(conn, **wanted):
                    await conn.execute(row["statement"])
        finally:
            await query("unlock_migrations").many(conn)
    return roles


async def _check(conn: Connection, roles: Sequence[str]) -> None:
    for row in await query("find_roles").many(conn, roles=list(roles)):
        if not row["found"]:
            raise ConfigError(f"[database]: there is no role {row['role']}: create it, or name another")
        if row["is_owner"]:
            raise ConfigError(f"[database]: role {row['role']} owns the tables: name roles of the processes' own")
