"""`turnstile migrate`: creates what worker and bridge need in the three servers. It may be repeated."""

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

from temporalio.client import Client

from turnstile.activities.models.price_list import list_version
from turnstile.bridge.engine import declare_search_attributes
from turnstile.embedded import Endpoints
from turnstile.ledger.budgets.prices import drop_prices
from turnstile.ledger.grants import grant
from turnstile.ledger.migrate import migrate
from turnstile.ledger.pool import Pool
from turnstile.processes.connections import open_client, open_nats, open_pool
from turnstile.processes.models import bring_prices
from turnstile.runtime.waiting import await_server
from turnstile.schema.errors import ServerUnavailable
from turnstile.settings import Settings
from turnstile.temporal.plugin import turnstile_plugin
from turnstile.transport.connection import NatsConnection
from turnstile.transport.streams import (
    COMMANDS_CONSUMER,
    PMO_CONSUMER,
    STREAMS,
    THREAD_TURNS_CONSUMER,
    UI_ACTIONS_CONSUMER,
    declare_commands,
    declare_pmo,
    declare_streams,
    declare_thread_turns,
    declare_ui_actions,
    declare_wakeups,
    wakeup_consumer,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """The names of what `migrate` applied or declared."""

    schema_files: list[str]
    streams: list[str]
    consumers: list[str]
    search_attributes: list[str]
    roles: list[str]


async def migrate_all(settings: Settings, endpoints: Endpoints, *, needs_nats: bool = True) -> MigrationReport:
    """Bring database and roles up to date and declare streams, consumers and search attributes.

    Waits for servers that are away; without `needs_nats` not for NATS, whose streams a bridge declares later.
    """
    named = settings.database
    async with AsyncExitStack() as stack:
        opening = open_pool(settings, endpoints.database_url, 2, "turnstile-migrate", migrated=False)
        pool = await stack.enter_async_context(opening)

        async def in_ledger() -> tuple[list[str], list[str]]:
            applied = await migrate(pool)
            granted = await grant(
                pool,
                bridge_role=named.bridge_role,
                worker_role=named.worker_role,
                gateway_role=named.gateway_role,
            )
            await renew_prices(settings, pool)
            return applied, granted

        applied, roles = await await_server("PostgreSQL", in_ledger)
        opening_nats = open_nats(settings.nats, endpoints.nats_url, "turnstile-migrate", needed=needs_nats)
        conn = await stack.enter_async_context(opening_nats)
        try:
            await _declare(settings, conn)
        except ServerUnavailable as error:
            if needs_nats:
                raise
            log.warning("streams are left to the bridge: %s", error)
        attributes: list[str] = []

        async def in_engine(client: Client) -> None:
            attributes[:] = await declare_search_attributes(client)

        await open_client(settings, endpoints, turnstile_plugin(), check=in_engine)
    consumers = [
        COMMANDS_CONSUMER,
        THREAD_TURNS_CONSUMER,
        PMO_CONSUMER,
        *(wakeup_consumer(target) for target in settings.worker.worker_targets),
        *([UI_ACTIONS_CONSUMER] if settings.bridge.ui_actions else []),
    ]
    return MigrationReport(applied, [*STREAMS], consumers, attributes, roles)


async def renew_prices(settings: Settings, pool: Pool) -> None:
    """Store what models cost by the installed list and these settings, and remove what neither has any more."""
    gone = await pool.run(lambda conn: drop_prices(conn, settings.model.prices, list_version()))
    await bring_prices(settings, pool, again=gone > 0)


async def _declare(settings: Settings, conn: NatsConnection) -> None:
    await declare_streams(conn, gone_seconds=0, raise_replicas=True)
    await declare_commands(conn)
    await declare_thread_turns(conn)
    await declare_pmo(conn)
    for target in settings.worker.worker_targets:
        await declare_wakeups(conn, target)
    if settings.bridge.ui_actions:
        await declare_ui_actions(conn)
