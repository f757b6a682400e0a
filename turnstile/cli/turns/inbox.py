"""`turnstile inbox`: lists inbox rows, to find out why a turn does not go on."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command
from turnstile.schema.states import InboxStatus

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()


@command(app, "list", project=True)
async def show(
    session: "Session",
    agent: Annotated[str | None, typer.Option(help="Only rows of this agent.")] = None,
    status: Annotated[InboxStatus | None, typer.Option(help="Only rows in this status.")] = None,
    limit: Annotated[int, typer.Option(help="How many rows to show.", min=1, max=10_000)] = 20,
) -> None:
    """List inbox rows, the newest first."""
    from turnstile.schema.ledger_reads import InboxRead, ReadRequest
    from turnstile.sdk.requests import parse_request

    page = parse_request(InboxRead, {"agent_id": agent, "status": status, "limit": limit})
    rows = (await session.read(ReadRequest(inbox=page))).inbox
    session.out.records(
        f"inbox rows of {agent or session.project}",
        rows,
        {
            "created": lambda row: row.created_at,
            "agent": lambda row: row.agent_id,
            "type": lambda row: row.message_type,
            "status": lambda row: row.status,
            "turn": lambda row: row.agent_turn_id,
            "epoch": lambda row: row.turn_epoch,
            "retries": lambda row: row.retry_count,
            "due": lambda row: row.next_retry_at if row.archived_at is None else None,
            "why": lambda row: row.last_error or (row.defer_reason if row.archived_at is None else None),
            "correlation": lambda row: None if row.correlation_id == row.agent_turn_id else row.correlation_id,
        },
    )
