"""`turnstile usage`: tokens and cost of a project's model calls, summed by the ledger."""

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
    by: Annotated[By, typer.Option(help="One line for each of these; days are UTC.")] = By.MODEL,
    days: Annotated[
        int | None, typer.Option(help="Only the last DAYS days.", metavar="DAYS", min=1, max=36_500)
    ] = None,
) -> None:
    """Sum tokens and cost of all model calls, including failed ones."""
    from datetime import UTC, datetime, timedelta

    from turnstile.ledger.turns.usage import sum_usage

    since = None if days is None else datetime.now(UTC) - timedelta(days=days)
    async with session.ledger() as pool:
        lines = await pool.run(lambda conn: sum_usage(conn, session.project, by.value, since=since))
    session.out.records(
        f"usage of {session.project} by {by.value}, in US dollars",
        lines,
        {
            by.value: lambda line: "all" if line.name is None else line.name,
            "turns": lambda line: line.turns,
            "steps": lambda line: line.steps,
            "attempts": lambda line: line.attempts,
            "failed": lambda line: line.failed_attempts,
            "prompt": lambda line: line.prompt_tokens,
            "completion": lambda line: line.completion_tokens,
            "total": lambda line: line.total_tokens,
            "cost": lambda line: "" if line.response_cost is None else f"{line.response_cost:.6f}",
            "estimated": lambda line: line.estimated_attempts,
            "unknown": lambda line: line.unknown_attempts,
        },
    )
