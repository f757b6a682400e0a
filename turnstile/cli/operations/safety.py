"""`turnstile watchdog` and `turnstile rebuild-engine`: runs the safety net by hand."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnstile.cli.session import Session

_SHOWN = 20


async def watchdog(
    session: "Session",
    once: Annotated[bool, typer.Option("--once", help="Run each rule once, now.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --once: print what would be repaired.")] = False,
) -> None:
    """Show what the safety net has repaired, by rule. With --once, run its rules for the settings' worker_targets."""
    from turnstile.schema.errors import BadRequest

    if dry_run and not once:
        raise BadRequest("--dry-run needs --once")
    if once:
        await _run_once(session, dry_run=dry_run)
    else:
        await _print_repairs(session)


async def _print_repairs(session: "Session") -> None:
    from turnstile.ledger.operations.recovery import list_repairs

    async with session.ledger() as pool:
        repairs = await pool.run(list_repairs)
    session.out.records(
        "repairs",
        repairs,
        {"rule": lambda row: row.rule, "mended": lambda row: row.repaired, "last": lambda row: row.last_at},
    )


async def _run_once(session: "Session", *, dry_run: bool) -> None:
    from turnstile.bridge.safety.watchdog import Watchdog
    from turnstile.ledger.operations.recovery import list_repairs
    from turnstile.processes.bridge import open_rules

    endpoints = session.endpoints()
    async with open_rules(session.settings, endpoints) as (pool, rules):
        reports = await Watchdog(pool, rules).once(dry_run=dry_run)
        total = {row.rule: row.repaired for row in await pool.run(list_repairs)}
    session.exit_code = int(any(report.failed for report in reports))
    if session.out.as_json:
        session.out.document(
            {
                report.rule: {"found": list(report.ids), "mended": report.mended, "failed": report.failed}
                for report in reports
            }
        )
        return
    session.out.table(
        "the safety net, dry" if dry_run else "the safety net",
        ["rule", "found", "mended", "so far", "failed"],
        [(report.rule, len(report.ids), report.mended, total.get(report.rule, 0), report.failed) for report in reports],
    )
    for report in reports:
        for ids in report.ids[:_SHOWN]:
            session.out.line(f"{report.rule}  {ids}")
        if len(report.ids) > _SHOWN:
            session.out.line(f"{report.rule}  and {len(report.ids) - _SHOWN} more")


async def rebuild_engine(
    session: "Session", dry_run: Annotated[bool, typer.Option("--dry-run", help="List the turns; start none.")] = False
) -> None:
    """Start a new workflow for every live turn that has none, after Temporal has lost its data.

    Bridges do the same within the settings' engine_interval_seconds, but at most 3 times for a turn. Restarts by this
    command are not counted.
    """
    from turnstile.processes.bridge import open_rules

    endpoints = session.endpoints()
    async with open_rules(session.settings, endpoints) as (pool, rules):
        lost = await rules.reconciler.list_lost(pool.run, fresh_seconds=0)
        started = 0 if dry_run else await rules.reconciler.bring_back(lost, counted=False)
    if session.out.as_json:
        session.out.document({"lost": [turn.agent_turn_id for turn in lost], "started": started})
        return
    session.out.records(
        "turns without a workflow",
        lost,
        {
            "turn": lambda turn: turn.agent_turn_id,
            "agent": lambda turn: turn.agent_id,
            "project": lambda turn: turn.project_id,
            "status": lambda turn: turn.status,
            "since": lambda turn: turn.updated_at,
        },
    )
    if lost:
        session.out.line(f"{started} of {len(lost)} started again")
