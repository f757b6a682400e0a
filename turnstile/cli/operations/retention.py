"""`turnstile prune` and `turnstile export`: removes old data, and writes a project's data as JSON lines."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.moments import moment
from turnstile.schema.amounts import amount

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path
    from typing import TextIO

    from turnstile.cli.session import Session
    from turnstile.ledger.operations.retention import Pruned, RetentionLimits


async def prune(
    session: "Session",
    older_than: Annotated[
        str,
        typer.Option(
            help="Remove what ended before this: an age such as 30d, or a time.", metavar="T", show_default=False
        ),
    ],
    project: Annotated[str | None, typer.Option(help="Only this project, instead of all.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would be removed; remove nothing.")] = False,
    batch: Annotated[int, typer.Option(help="Rows read per transaction.", min=1, max=10_000)] = 500,
    pause: Annotated[float, typer.Option(help="Seconds between transactions.", min=0, max=60)] = 0.0,
) -> None:
    """Remove turns and threads that ended long ago, and cards and boxes that nothing refers to any more."""
    import time
    from datetime import UTC, datetime, timedelta

    from turnstile.ledger.operations.retention import RetentionLimits, ledger_time
    from turnstile.ledger.operations.retention import prune as run
    from turnstile.schema.ids import ProjectId, token

    named = None if project is None else ProjectId(token(project, "--project"))
    _parse_age(older_than, datetime.now(UTC))
    began = time.monotonic()
    async with session.ledger() as pool:
        now = await pool.run(ledger_time)
        unused = now - timedelta(days=session.settings.retention.instances_after_days)
        limits = RetentionLimits(_parse_age(older_than, now), named, batch, pause, unused)
        with session.out.progress("counting" if dry_run else "pruning") as show:
            pruned = await run(pool, limits, dry_run=dry_run, report=lambda sums: show(_summary(sums)))
    _print_result(session, limits, pruned, time.monotonic() - began, dry_run=dry_run)


def _private(path: "Path") -> "TextIO":
    """The file, which its owner alone may read: it holds what people wrote to agents."""
    import os

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "w", encoding="utf-8")


def _parse_age(text: str, now: "datetime") -> "datetime":
    """A time at least an hour before `now`, so that clients that wait for a turn have read it."""
    from datetime import timedelta

    from turnstile.schema.errors import BadRequest

    before = moment(text, "--older-than", now)
    if before > now - timedelta(hours=1) + timedelta(seconds=5):
        raise BadRequest(f"--older-than must be an hour or more, got {text[:40]!r}")
    return before


def _summary(pruned: "Pruned") -> str:
    return f"{pruned.turns} turns, {pruned.threads} threads, {pruned.boxes} boxes, {pruned.cards} cards"


def _print_result(
    session: "Session", limits: "RetentionLimits", pruned: "Pruned", seconds: float, *, dry_run: bool
) -> None:
    sums = pruned.model_dump()
    if session.out.as_json:
        before = limits.before.isoformat()
        session.out.document({"before": before, "dry_run": dry_run, **sums, "seconds": round(seconds, 3)})
        return
    longest = sums.pop("longest_ms")
    facts = {name.replace("_", " "): str(count) for name, count in sums.items()}
    title = "would be removed" if dry_run else "removed"
    session.out.facts(title, facts | {"took": f"{seconds:.1f} s, the longest transaction {amount(longest)} ms"})


async def export(
    session: "Session",
    project: Annotated[str, typer.Argument(help="The project.", metavar="PROJECT", show_default=False)],
    out: Annotated[str, typer.Option(help="File to write; - is standard output.", metavar="FILE")] = "-",
    agent: Annotated[list[str] | None, typer.Option(help="Only this agent; may be repeated.", metavar="ID")] = None,
) -> None:
    """Write all data of a project, as of one moment, as JSON lines. Turns may keep running."""
    import asyncio
    import contextlib
    import sys
    from pathlib import Path

    from turnstile.ledger.operations.export import export_project
    from turnstile.schema.errors import BadRequest, Refused
    from turnstile.schema.ids import AgentId, ProjectId, token

    named = ProjectId(token(project, "PROJECT"))
    agents = [AgentId(token(name, "--agent")) for name in agent or ()]
    try:
        opened = contextlib.nullcontext(sys.stdout) if out == "-" else _private(Path(out))
    except OSError as error:
        raise BadRequest(f"--out: {error.filename} cannot be written ({error.strerror})") from None
    lines = 0
    async with session.ledger() as pool:
        with opened as file, session.out.progress("exporting") as show:
            async with contextlib.aclosing(export_project(pool, named, agents)) as exported:
                async for line in exported:
                    file.write(line.text + "\n")
                    lines += line.table is not None
                    if lines % 1000 == 0:
                        show(f"{lines} rows")
            file.flush()
    if not lines:
        if out != "-":
            await asyncio.to_thread(Path(out).unlink)
        whose = f"project {named}" if not agents else f"these agents of project {named}"
        raise Refused(
            "nothing_to_export", f"there is nothing of {whose}: `turnstile agent list --project` shows agents"
        )
    session.out.remark(f"{lines} rows of project {named}")
