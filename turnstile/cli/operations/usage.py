"""`turnstile usage`: tokens and cost of a project's model calls, summed by a bridge."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnstile.cli.session import Session


class By(StrEnum):
    """What the lines are grouped by."""

    AGENT = "agent"
    MODEL = "model"
    DAY = "day"


async def usage(
    session: "Session",
    by: Annotated[By, typer.Option(help="What to group the calls by; days are UTC.")] = By.MODEL,
    days: Annotated[
        int | None, typer.Option(help="Only the last DAYS days.", metavar="DAYS", min=1, max=36_500)
    ] = None,
    tree: Annotated[
        str | None, typer.Option(help="Only the tree of turns that this turn is in.", metavar="TURN")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Only the turns charged to this budget: a turn's id, `day`, `month` or a date.", metavar="BUDGET"
        ),
    ] = None,
) -> None:
    """Add up the tokens and cost of all model calls, including failed ones."""
    from datetime import UTC, datetime, timedelta

    from turnstile.schema.amounts import money
    from turnstile.schema.errors import BadRequest
    from turnstile.schema.ledger_reads import ReadRequest, UsageRead
    from turnstile.sdk.requests import parse_request

    if tree is not None and budget is not None:
        raise BadRequest("either --tree or --budget")
    since = None if days is None else (datetime.now(UTC) - timedelta(days=days)).isoformat()
    sums = parse_request(UsageRead, {"by": by.value, "since": since, "tree": tree, "budget_id": budget})
    reply = await session.read(ReadRequest(usage=sums))
    of = f"the tree of turn {reply.about}" if tree else f"budget {reply.about}" if budget else session.project
    session.out.records(
        f"usage of {of} by {by.value}",
        reply.usage,
        {
            by.value: lambda line: "all" if line.name is None else line.name,
            "turns": lambda line: line.turns,
            "steps": lambda line: line.steps,
            "attempts": lambda line: line.attempts,
            "failed": lambda line: line.failed_attempts,
            "prompt": lambda line: line.prompt_tokens,
            "completion": lambda line: line.completion_tokens,
            "total": lambda line: line.total_tokens,
            "cost": lambda line: "" if line.response_cost is None else money(line.response_cost),
            "estimated": lambda line: line.estimated_attempts,
            "unknown": lambda line: line.unknown_attempts,
        },
    )
