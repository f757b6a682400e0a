"""How it stands now, over all projects, for `turnstile top` and metrics. Bounded, indexed reads; decides nothing."""

from collections.abc import Sequence
from datetime import datetime

from pydantic import Json

from ledger.queries import Connection, query
from ledger.sweep import WORKER_SILENT_SECONDS
from schema.base import Tolerant

ROW_LIMIT = 10_000
"""Rows of a kind that are looked at; what is more is not counted."""


class InboxLag(Tolerant):
    """Live inbox rows by status, and for how long the oldest due one has been due."""

    rows: Json[dict[str, int]]
    oldest_due_seconds: float


class Standing(InboxLag):
    """Everything at once. `outcomes` and `mean_seconds` are of the turns that ended in the last minute."""

    seen_at: datetime
    agents: Json[dict[str, int]]
    outcomes: Json[dict[str, int]]
    mean_seconds: float | None
    repairs: Json[dict[str, int]]
    workers: Json[dict[str, int]]
    open_threads: int


async def measure_inbox(conn: Connection, worker_targets: Sequence[str] | None = None) -> InboxLag:
    """The inbox of these targets, or of all; one round trip."""
    targets = None if worker_targets is None else list(worker_targets)
    row = await query("measure_inbox").one(conn, worker_targets=targets, row_limit=ROW_LIMIT)
    return InboxLag.model_validate(dict(row))


async def look_around(conn: Connection) -> Standing:
    """Everything at once; one round trip."""
    row = await query("look_around").one(conn, row_limit=ROW_LIMIT, silent_seconds=WORKER_SILENT_SECONDS)
    return Standing.model_validate(dict(row))
