"""`turnstile budget`: list, show, raise and limit.

It asks a bridge or a gateway. An operator's commands over NATS see the budgets of all channels.
"""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnstile.cli.session import Session
    from turnstile.schema.budgets.views import BudgetView, ProjectLimits

app = typer.Typer()

Id = Annotated[
    str,
    typer.Argument(
        help="A turn's id; or the project's `day` or `month`, or one such as 2026-11-23 or 2026-11.", metavar="BUDGET"
    ),
]


def _decimal(text: str) -> Decimal:
    from decimal import InvalidOperation

    try:
        return Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter("a number of US dollars, such as 0.50") from None


Tokens = Annotated[int | None, typer.Option(help="Tokens that models read and write.", metavar="N")]
Usd = Annotated[
    Decimal | None, typer.Option(help="US dollars, at most 6 decimal places.", metavar="USD", parser=_decimal)
]
Turns = Annotated[int | None, typer.Option(help="Turns.", metavar="N")]


@command(app, "list", project=True, channel=True, client=True)
async def show_all(
    session: "Session",
    kind: Annotated[
        Literal["turn", "day", "month"] | None, typer.Option(help="Only budgets of turns, or only the project's.")
    ] = None,
    status: Annotated[
        Literal["open", "ended", "closed"] | None, typer.Option(help="Only those with this status.")
    ] = None,
    limit: Annotated[int, typer.Option(help="How many to show.", min=1, max=1000)] = 50,
) -> None:
    """List budgets, the newest first; for operators of all channels."""
    from turnstile.cli.budgets.budget_report import budget_line

    views = await _views(session, kind, status, limit)
    session.out.records(
        f"budgets of {session.options.project or 'the project'}",
        views,
        {
            "budget": lambda row: row.budget_id,
            "status": lambda row: row.status,
            "spent": budget_line,
            "granted": lambda row: row.created_at,
        },
    )


@command(app, "show", project=True, channel=True, client=True)
async def show(session: "Session", budget: Id) -> None:
    """Show a budget: its limits, and what is spent, reserved and left."""
    from turnstile.cli.budgets.budget_report import print_budget

    view = await find_budget(session, budget)
    if session.out.as_json:
        session.out.document(view)
    else:
        print_budget(session.out, view)


@command(app, "raise", project=True, channel=True, client=True)
async def raise_budget(
    session: "Session", budget: Id, tokens: Tokens = None, usd: Usd = None, turns: Turns = None
) -> None:
    """Raise a budget by these amounts; negative amounts take back what is not spent. Only operators may do this.

    A turn's budget takes them from the budget above it. If that has too little left, raise it first.
    """
    from turnstile.cli.budgets.budget_report import budget_line

    view = await find_budget(session, budget)
    async with session.client() as client:
        view = await client.raise_budget(view, tokens=tokens, cost_usd=usd, turns=turns)
    session.out.result(view, f"budget {view.budget_id}: {budget_line(view)}")


@command(app, "limit", project=True, channel=True, client=True)
async def limit(
    session: "Session",
    period: Annotated[Literal["day", "month"] | None, typer.Argument(help="The period, in UTC.")] = None,
    tokens: Tokens = None,
    usd: Usd = None,
    turns: Turns = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the limits.")] = False,
) -> None:
    """Set what all turns of the project may spend together in each day or month; without options, show the limits."""
    from turnstile.cli.budgets.budget_report import budget_line, limits_line
    from turnstile.schema.errors import BadRequest

    limited = any(limit is not None for limit in (tokens, usd, turns))
    if period is None or not (limited or none):
        if limited or none:
            raise BadRequest("name the period: `turnstile budget limit day …` or `… month …`")
        limits = [limit for limit in await _limits(session) if period in (None, limit.period)]
        if session.out.as_json:
            session.out.document(limits)
        else:
            for limit in limits:
                session.out.line(limits_line(limit), note=f"set by {limit.updated_by}" if limit.updated_by else "")
            if not limits:
                session.out.remark("the project has no limits")
        return
    if limited and none:
        raise BadRequest("either limits or --none")
    async with session.client() as client:
        view = await client.limit_project(period, tokens=tokens, cost_usd=usd, turns=turns)
    text = "the project has no limit" if none else budget_line(view)
    session.out.result(view, f"each {period}: {text}; this one is {view.budget_id}")


async def find_budget(session: "Session", name: str) -> "BudgetView":
    """The budget; for an operator of any channel, and a turn's by the beginning of its id.

    Raises `Refused` (unknown_budget, ambiguous_turn).
    """
    from turnstile.schema.budgets.budget_requests import BudgetRequest
    from turnstile.schema.ledger_reads import ReadRequest
    from turnstile.sdk.requests import parse_request

    named = ReadRequest(budget=parse_request(BudgetRequest, {"budget_id": name}))
    async with session.client() as client:
        reply = await session.read_if_operator(client, named)
        if reply is not None and reply.budget is not None:
            return reply.budget
        return await session.patiently(lambda: client.budget(name))


async def _views(
    session: "Session",
    kind: Literal["turn", "day", "month"] | None,
    status: Literal["open", "ended", "closed"] | None,
    limit: int,
) -> "Sequence[BudgetView]":
    from turnstile.schema.budgets.budget_requests import BudgetListRequest
    from turnstile.schema.ledger_reads import ReadRequest

    page = ReadRequest(budgets=BudgetListRequest(kind=kind, status=status, limit=limit))
    async with session.client() as client:
        reply = None if session.options.channel else await session.read_if_operator(client, page)
        if reply is not None:
            return reply.budgets
        return await session.patiently(lambda: client.budgets(kind=kind, status=status, limit=limit))


async def _limits(session: "Session") -> "list[ProjectLimits]":
    async with session.client() as client:
        return await session.patiently(client.limits)
