"""`turnstile audit`: checks the protocol's invariants on ledger and Temporal, and prints each violation by its ids."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.errors import REFUSED
from turnstile.cli.moments import moment
from turnstile.schema.amounts import amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstile.cli.session import Session
    from turnstile.ledger.operations.audit import Audit, Scope


async def audit(
    session: "Session",
    project: Annotated[str | None, typer.Option(help="Only this project, instead of all.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only turns enqueued since then: a time, or an age such as 24h or 30d.", metavar="T"),
    ] = None,
    engine: Annotated[bool, typer.Option("--engine", help="Also compare ledger and Temporal.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Also compare ledger and store of files.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="With --files: read all of them, and compare hashes.")] = False,
    limit: Annotated[int, typer.Option(help="How many violations to show for each rule.", min=1, max=100_000)] = 100,
) -> None:
    """Check every invariant of the protocol, changing nothing. Turns may keep running. Exit code 1 if one is broken."""
    import time

    from turnstile.ledger.operations.audit import Bounds, Scope, audit
    from turnstile.schema.ids import ProjectId, token

    named = None if project is None else ProjectId(token(project, "--project"))
    scope = Scope(named, None if since is None else moment(since, "--since"))
    bounds = Bounds(
        claim_seconds=session.settings.bridge.inbox_processing_timeout_seconds,
        depth_limit=session.settings.protocol.max_recursion_depth,
    )
    began = time.monotonic()
    async with session.ledger() as pool:
        audits = [await audit(pool, scope, bounds, row_limit=limit)]
    if engine:
        audits.append(await _engine(session, scope, limit))
    if files or deep:
        audits.append(await _files(session, scope, limit, deep=deep))
    _print_result(session, audits, time.monotonic() - began)
    if any(audit.violations for audit in audits):
        session.exit_code = REFUSED


async def _engine(session: "Session", scope: "Scope", limit: int) -> "Audit":
    import asyncio

    from turnstile.bridge.engine import await_client
    from turnstile.bridge.safety.engine_audit import EngineBounds, audit_engine
    from turnstile.schema.errors import ServerUnavailable
    from turnstile.temporal.connect import connect_engine

    endpoints = session.endpoints()
    patience, address = session.settings.database.patience_seconds, endpoints.temporal_address
    try:
        async with asyncio.timeout(patience):
            client = await await_client(address, lambda: connect_engine(session.settings.temporal, endpoints))
    except TimeoutError:
        raise ServerUnavailable(f"no answer from Temporal at {address} in {amount(patience)} s") from None
    async with session.ledger() as pool:
        return await audit_engine(pool, client, scope, EngineBounds(), row_limit=limit)


async def _files(session: "Session", scope: "Scope", limit: int, *, deep: bool) -> "Audit":
    from turnstile.bridge.files.file_audit import audit_files
    from turnstile.processes.addresses import with_store
    from turnstile.processes.connections import open_store
    from turnstile.schema.errors import ConfigError

    store = open_store(with_store(session.settings, session.options.data).artifacts)
    if store is None:
        raise ConfigError("no store of files is known: set [artifacts].store")
    async with session.ledger() as pool:
        return await audit_files(pool, store, scope, deep=deep, row_limit=limit)


def _print_result(session: "Session", audits: "Sequence[Audit]", seconds: float) -> None:
    """Print the rules as a table and each violation on a line, or all as one JSON object."""
    rules = [rule for a in audits for rule in a.rules]
    broken = [violation for a in audits for violation in a.violations]
    cut = [rule.rule for rule in rules if rule.cut]
    if session.out.as_json:
        session.out.document(
            {
                "clean": not broken,
                "rules": [rule.model_dump() for rule in rules],
                "violations": [violation.model_dump() for violation in broken],
                "cut": [*cut],
                "seconds": round(seconds, 3),
            }
        )
        return
    cells = [(rule.rule, rule.section, f"{rule.violations}{'+' if rule.cut else ''}") for rule in rules]
    session.out.table("audit", ["rule", "protocol", "violations"], cells)
    for violation in broken:
        ids = " ".join(f"{name}={value}" for name, value in violation.ids.items())
        session.out.line(f"{violation.rule}  {violation.section}  {ids}  {violation.detail}", style="red")
    for rule in cut:
        session.out.remark(f"{rule} has more violations: --limit shows more of them")
    held = sum(not rule.violations for rule in rules)
    summary = f"{held} of {len(rules)} rules hold, {len(broken)} violations, {seconds:.1f} s"
    session.out.line(summary, style="bold red" if broken else "green")
