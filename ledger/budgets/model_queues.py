"""The queues of requests to models: `swap_model_queue`, `load_model_queues`, `list_model_queues` (protocol §7.9).

A queue is one row, decided by `turnstile.rules.model_queue` and written only by who read it last: no lock outlives a
statement, so a worker that stops in between holds nobody up. Each is one round trip.
"""

from datetime import datetime

from pydantic import Json

from turnstile.ledger.queries import Again, Connection, query
from turnstile.rules.model_queue import ModelQueue
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import ProjectId

_MOST_QUEUES = 10_000


class StoredQueue(Tolerant):
    """A queue as the ledger has it; `now` is the ledger's clock, in seconds since 1970."""

    version: int
    state: Json[ModelQueue]
    now: float


class LoadedQueue(StoredQueue):
    """A queue that holds requests up."""

    account: str
    model: str


class QueueView(Tolerant):
    """A queue for people."""

    account: str
    model: str
    paused_until: datetime | None
    waiting: int
    state: Json[ModelQueue]

    def waiting_of(self, project: ProjectId) -> int:
        """How many requests of a project wait in it."""
        return sum(one.project_id == project for one in self.state.waiting)


async def swap_model_queue(
    conn: Connection, account: str, model: str, queue: ModelQueue, *, version: int, expected: int | None
) -> StoredQueue:
    """Write the queue as `version` if it is the `expected` one; returns what is stored then.

    A result of another version was not written. A new queue has no expected one. Raises `Again` if another process
    stored it just now.
    """
    row = await query("swap_model_queue").opt_as(
        conn,
        StoredQueue,
        account=account,
        model=model,
        version=version,
        expected=expected,
        state=queue.model_dump_json(),
        paused_until=queue.paused_until or None,
        waiting=len(queue.waiting),
    )
    if row is None:
        raise Again
    return row


async def load_model_queues(conn: Connection) -> list[LoadedQueue]:
    """The queues that hold requests up, for a worker that begins; removes those that nobody used for a day."""
    return await query("load_model_queues").all_as(conn, LoadedQueue, row_limit=_MOST_QUEUES)


async def list_model_queues(conn: Connection, *, row_limit: int) -> list[QueueView]:
    """The queues in which requests wait, or whose provider wants none now."""
    return await query("list_model_queues").all_as(conn, QueueView, row_limit=row_limit)
