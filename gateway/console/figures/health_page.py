"""How the project is served: processes, targets, servers, what the safety net repaired; and its audit, on demand.

No address of a server is shown. What concerns the whole project, or all projects, a token of one channel does not see.
An audit reads much, so operators alone start one, of a window, one at a time in a gateway, and it may take so long.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from starlette.responses import Response

from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import render
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.http.endpoints import NoQuery
from turnstile.gateway.http.problems import Forbidden
from turnstile.ledger.access.fleet import Process, TargetNeed, describe_server, list_processes, list_target_needs
from turnstile.ledger.budgets.model_queues import QueueView, list_model_queues
from turnstile.ledger.operations.audit import Scope, audit
from turnstile.ledger.operations.recovery import Repairs, list_own_repairs
from turnstile.runtime.release import release
from turnstile.schema.access import Right
from turnstile.schema.amounts import amount
from turnstile.schema.base import Strict
from turnstile.schema.errors import Limited, Refused

HEALTH = f"{CONSOLE}/health"
_PROCESSES: Final = 200
_QUEUES: Final = 100
_AUDIT_SECONDS: Final = 30.0
_VIOLATIONS: Final = 20
_WINDOWS: Final = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}


class AuditQuery(Strict):
    """Which turns are audited."""

    since: Literal["1h", "24h", "7d"] = "1h"
    """Those that were enqueued since then."""


def pages(_: Console) -> tuple[Page, ...]:
    """The pages."""
    running = asyncio.Lock()

    async def show_audit(visit: Visit[AuditQuery, NoForm]) -> Response:
        return await _audited(visit, running)

    return (
        Page(name="health", path=HEALTH, handler=show_health),
        Page(name="audit", path=f"{HEALTH}/audit", right=Right.OPERATE, handler=show_audit, query=AuditQuery),
    )


async def show_health(visit: Visit[NoQuery, NoForm]) -> Response:
    """Processes, targets, servers, limited models and repairs."""
    console, project = visit.console, visit.principal.project_id
    if visit.fragment:
        return render(visit, "still.html")
    whole = visit.principal.channel_id is None
    server = await console.pool.run(describe_server)
    processes: list[Process] = []
    needs: list[TargetNeed] = []
    repairs: list[Repairs] = []
    queues: list[QueueView] = []
    if whole:
        queues = await console.pool.run(lambda conn: list_model_queues(conn, row_limit=_QUEUES))
        processes = await console.pool.run(lambda conn: list_processes(conn, project, row_limit=_PROCESSES))
        needs = await console.pool.run(lambda conn: list_target_needs(conn, project))
        repairs = await console.pool.run(lambda conn: list_own_repairs(conn, project))
    bridges = [process for process in processes if process.is_bridge]
    workers = [process for process in processes if not process.is_bridge]
    return render(
        visit,
        "figures/health.html",
        whole=whole,
        server=server,
        nats=console.conn.connected.is_set(),
        reconnects=console.conn.reconnects,
        # A worker signs on only while the engine answers it.
        engine=max((worker.last_seen_at for worker in workers if worker.here), default=None),
        bridges=bridges,
        workers=workers,
        needs=needs,
        repairs=repairs,
        queues=[(queue, queue.waiting_of(project)) for queue in queues],
        release=release(),
    )


async def _audited(visit: Visit[AuditQuery, NoForm], running: asyncio.Lock) -> Response:
    principal = visit.principal
    if visit.fragment:
        return render(visit, "still.html")
    if principal.channel_id is not None:
        raise Forbidden("the token is for one channel: an audit is of the whole project")
    if running.locked():
        raise Limited("audit_running", "this gateway audits already: try again in a moment", retry_after=5)
    scope = Scope(principal.project_id, datetime.now(UTC) - _WINDOWS[visit.query.since])
    async with running:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(_AUDIT_SECONDS):
                audited = await audit(visit.console.pool, scope, visit.console.audit_bounds, row_limit=_VIOLATIONS)
        except TimeoutError:
            raise Refused(
                "audit_too_long",
                f"it did not end in {amount(_AUDIT_SECONDS)} s: choose a shorter time, or run `turnstile audit`",
            ) from None
        seconds = asyncio.get_running_loop().time() - began
    return render(
        visit,
        "figures/audit.html",
        rules=sorted(audited.rules, key=lambda rule: (not rule.violations, rule.section)),
        violations=audited.violations,
        seconds=seconds,
        since=visit.query.since,
    )
