"""`turnstile usage`: tokens and cost of a project's model calls, summed by the ledger."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstile.cli.session import Session
    from turnstile.ledger.pool import Pool
    from turnstile.schema.ids import AgentTurnId


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

    from turnstile.ledger.turns.usage import sum_usage
    from turnstile.schema.amounts import money
    from turnstile.schema.errors import BadRequest

    if tree is not None and budget is not None:
        raise BadRequest("either --tree or --budget")
    since = None if days is None else datetime.now(UTC) - timedelta(days=days)
    async with session.ledger() as pool:
        of, turns = await _turns(session, pool, tree, budget)
        lines = await pool.run(lambda conn: sum_usage(conn, session.project, by.value, since=since, turns=turns))
    session.out.records(
        f"usage of {of} by {by.value}",
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
            "cost": lambda line: "" if line.response_cost is None else money(line.response_cost),
            "estimated": lambda line: line.estimated_attempts,
            "unknown": lambda line: line.unknown_attempts,
        },
    )


async def _turns(
    session: "Session", pool: "Pool", tree: str | None, budget: str | None
) -> "tuple[str, Sequence[AgentTurnId] | None]":
    """Whose usage it is, and of which turns; None: of all of the project."""
    project = session.project
    if tree is not None:
        from turnstile.cli.turns.lookup import require_turn
        from turnstile.ledger.budgets.budget_views import list_turns_of_tree

        named = (await require_turn(pool, project, tree)).agent_turn_id
        return f"the tree of turn {named}", await pool.run(lambda conn: list_turns_of_tree(conn, project, named))
    if budget is not None:
        from turnstile.cli.budgets.budget_commands import budget_in
        from turnstile.ledger.budgets.budget_views import list_charged_turns

        budget_id = (await budget_in(session, pool, budget)).budget_id
        return f"budget {budget_id}", await pool.run(lambda conn: list_charged_turns(conn, project, budget_id))
    return str(project), None
