"""Grants the rights of bridges, workers and gateways that have database roles of their own (docs/security.md).

`grants.sql` lists the rights. Granting is idempotent. It revokes all other rights of a role in the same transaction, so
that running processes see either the old rights or the new ones.
"""

from collections.abc import Sequence

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.schema.errors import ConfigError


async def grant(pool: Pool, *, bridge_role: str = "", worker_role: str = "", gateway_role: str = "") -> list[str]:
    """Grant the roles their rights, after `migrate` and as the owner of the tables; returns the roles.

    An empty name stands for no role; one name for several gets the rights of all of these. Raises `ConfigError` for
    a role that does not exist, or that owns the tables and would lose its rights. Raises `ServerUnavailable` as
    `migrate` does.
    """
    roles = sorted({bridge_role, worker_role, gateway_role} - {""})
    if not roles:
        return []
    async with pool.connection() as conn:
        await _check(conn, roles)
        await query("lock_schema").many(conn)
        try:
            async with conn.transaction():
                arguments = {
                    "bridge_role": bridge_role or None,
                    "worker_role": worker_role or None,
                    "gateway_role": gateway_role or None,
                }
                for row in await query("list_grants").many(conn, **arguments):
                    await conn.execute(row["statement"])
        finally:
            await query("unlock_schema").many(conn)
    return roles


async def _check(conn: Connection, roles: Sequence[str]) -> None:
    for row in await query("find_roles").many(conn, roles=list(roles)):
        if not row["found"]:
            raise ConfigError(f"[database]: there is no role {row['role']}: create it, or name another")
        if row["is_owner"]:
            raise ConfigError(f"[database]: role {row['role']} owns the tables: name roles of the processes' own")
