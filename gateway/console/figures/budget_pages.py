"""Budgets, and what operators do with them: raise one, and say what the project may spend in a day or month."""

import secrets
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from pydantic import Field, ValidationError
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.forms import require_seen, seen_of
from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import render, see_other
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.http.endpoints import Call, NoQuery
from turnstile.gateway.http.problems import Problem, problem_of
from turnstile.ledger.budgets.budget_views import budget_id_of, get_budget, is_raised, list_budgets, list_project_limits
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.api import BudgetLimitation, BudgetRaise
from turnstile.schema.base import Strict
from turnstile.schema.budgets.budget_requests import SpendingLimits
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.budgets.views import BudgetView
from turnstile.schema.errors import BadRequest, Refused, TurnstileError
from turnstile.schema.validation import describe_faults

BUDGETS = f"{CONSOLE}/budgets"
_PAGE = 50


class BudgetListQuery(Strict):
    """Which budgets."""

    kind: Literal["turn", "day", "month"] | None = None
    status: Literal["open", "ended", "closed"] | None = None
    after: str | None = Field(default=None, min_length=1, max_length=256)
    """Only those older than this one."""


class AmountsForm(Strict):
    """Amounts as they are typed; an empty one says nothing."""

    tokens: str = Field(default="", max_length=32)
    usd: str = Field(default="", max_length=32)
    turns: str = Field(default="", max_length=32)
    key: str = Field(default="", max_length=64)
    """A name of the form as it was shown, so that it counts once."""
    seen: str = Field(default="", max_length=16)
    """The limits that the page showed: the form changes those and no others."""
    action: Literal["set", "none"] = "set"
    """`none`: nothing shall limit the project any more."""


def pages(_: Console) -> tuple[Page, ...]:
    """The pages. A budget is named as for the command line: a turn's id, `day`, `2026-11-23`, `month`, `2026-11`."""
    one = f"{BUDGETS}/{{budget_id}}"
    return (
        Page(name="budgets", path=BUDGETS, handler=show_budgets, query=BudgetListQuery),
        Page(name="budget", path=one, handler=show_budget),
        Page(
            name="raise_budget",
            path=f"{one}/raise",
            method="POST",
            right=Right.OPERATE,
            handler=raise_budget,
            form=AmountsForm,
        ),
        Page(
            name="limit_project",
            path=f"{BUDGETS}/{{period}}/limit",
            method="POST",
            right=Right.OPERATE,
            handler=limit_project,
            form=AmountsForm,
        ),
    )


def name_of(view: BudgetView) -> str:
    """What a budget is called in addresses: of a project's the date."""
    return view.budget_id if view.kind == "turn" else view.budget_id.rpartition("/")[2]


async def show_budgets(visit: Visit[BudgetListQuery, NoForm]) -> Response:
    """A page of budgets, and what the project may spend."""
    if visit.fragment:
        return render(visit, "still.html")
    return await _listed(visit, visit.query)


async def _listed(
    visit: Visit[Any, Any], query: BudgetListQuery, typed: AmountsForm | None = None, problem: Problem | None = None
) -> Response:
    pool, principal = visit.console.pool, visit.principal
    project, channel, whole = principal.project_id, principal.channel_id, principal.channel_id is None
    budgets = await pool.run(
        lambda conn: list_budgets(
            conn,
            project,
            channel=channel,
            with_project=whole,
            kind=query.kind,
            status=query.status,
            after=None if query.after is None else BudgetId(query.after),
            row_limit=_PAGE + 1,
        )
    )
    limits = await pool.run(lambda conn: list_project_limits(conn, project)) if whole else []
    page = budgets[:_PAGE]
    return render(
        visit,
        "figures/budgets.html",
        200 if problem is None else problem.status,
        budgets=[(budget, name_of(budget)) for budget in page],
        limits={limit.period: limit for limit in limits},
        seen={
            period: seen_of(next((limit.updated_at for limit in limits if limit.period == period), None))
            for period in ("day", "month")
        },
        whole=whole,
        wanted=query,
        after=page[-1].budget_id if len(budgets) > _PAGE else None,
        typed=typed,
        period=visit.path.get("period"),
        problem=problem,
    )


async def show_budget(visit: Visit[NoQuery, NoForm]) -> Response:
    """A budget, and how to raise it."""
    return _one(visit, await _seen(visit))


def _one(
    visit: Visit[Any, Any], view: BudgetView, typed: AmountsForm | None = None, problem: Problem | None = None
) -> Response:
    return render(
        visit,
        "figures/budget.html",
        200 if problem is None else problem.status,
        budget=view,
        name=name_of(view),
        may_raise=visit.may("operate") and view.status == "open",
        key=typed.key if typed and typed.key else secrets.token_hex(8),
        seen=seen_of(*_limits_in(view)),
        typed=typed,
        problem=problem,
    )


async def raise_budget(visit: Visit[NoQuery, AmountsForm]) -> Response:
    """Give a budget more, or take back what is free."""
    view, form = await _seen(visit), visit.form
    try:
        if not await _sent_before(visit, form):
            require_seen(form.seen, *_limits_in(view))
        more = _body(BudgetRaise, _amounts(form) | ({"correlation_id": form.key} if form.key else {}))
        path: dict[str, str] = {"budget_id": view.budget_id}
        await visit.console.verbs.ask(verbs.RAISE_BUDGET, _call(visit, path, more))
    except TurnstileError as error:
        if error.code == "changed_meanwhile":  # what is decided again is another request
            form = form.model_copy(update={"key": ""})
        return _one(visit, view, form, problem_of(error))
    return see_other(f"{BUDGETS}/{part(name_of(view))}", "raised")


async def _sent_before(visit: Visit[NoQuery, AmountsForm], form: AmountsForm) -> bool:
    """Whether the form has raised a budget already: then it may come again, and changes nothing more."""
    project = visit.principal.project_id
    return bool(form.key) and await visit.console.pool.run(lambda conn: is_raised(conn, project, form.key))


def _limits_in(view: BudgetView) -> tuple[object, ...]:
    """The limits that the page of a budget shows: a raise adds to these and to no others."""
    return view.budget_id, view.tokens.max, view.cost_usd.max, view.turns.max


async def limit_project(visit: Visit[NoQuery, AmountsForm]) -> Response:
    """Say what the project may spend in each day or month from now on."""
    form, period = visit.form, visit.path["period"]
    try:
        if period not in ("day", "month"):
            raise BadRequest("period: must be `day` or `month`")
        require_seen(form.seen, await _limit_of(visit, period))
        limits = None if form.action == "none" else _body(SpendingLimits, _amounts(form))
        limitation = BudgetLimitation(limits=limits)
        await visit.console.verbs.ask(verbs.LIMIT_PROJECT, _call(visit, {"period": period}, limitation))
    except TurnstileError as error:
        return await _listed(visit, BudgetListQuery(), form, problem_of(error))
    return see_other(BUDGETS, "limited" if limits else "unlimited")


async def _limit_of(visit: Visit[Any, Any], period: str) -> object:
    """When the project's limit of this period was set, if it has one."""
    project = visit.principal.project_id
    limits = await visit.console.pool.run(lambda conn: list_project_limits(conn, project))
    return next((limit.updated_at for limit in limits if limit.period == period), None)


def _amounts(form: AmountsForm) -> dict[str, Any]:
    """What was typed, as numbers; raises `BadRequest`, which names the field."""
    amounts: dict[str, Any] = {}
    for field, name in (("tokens", "max_tokens"), ("turns", "max_turns")):
        if text := str(getattr(form, field)).replace(",", "").strip():
            try:
                amounts[name] = int(text)
            except ValueError:
                raise BadRequest(f"{field}: must be a whole number, such as 100000") from None
    if text := form.usd.replace(",", "").strip().removeprefix("$"):
        try:
            amounts["max_cost_usd"] = Decimal(text)
        except InvalidOperation:
            raise BadRequest("US dollars: must be a number, such as 2.50") from None
    if not amounts:
        raise BadRequest("enter at least one amount")
    return amounts


def _body(model: type[Any], fields: dict[str, Any]) -> Any:
    """The request's body, checked as `/v1` does; raises `BadRequest`."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise BadRequest(describe_faults(error, model, most=1)) from None


def _call(visit: Visit[NoQuery, AmountsForm], path: dict[str, str], body: Any) -> Call[Any, Any]:
    """The same as `/v1` reads it: its handlers hold what a token may see and change."""
    return Call(visit.principal, path, NoQuery(), body, visit.headers, visit.request, visit.secret)


async def _seen(visit: Visit[NoQuery, NoForm] | Visit[NoQuery, AmountsForm]) -> BudgetView:
    """The budget of the address; raises `Refused` (unknown_budget)."""
    principal = visit.principal
    project, channel = principal.project_id, principal.channel_id
    name = visit.path["budget_id"]
    budget = await visit.console.pool.run(lambda conn: budget_id_of(conn, project, name))
    view = await visit.console.pool.run(
        lambda conn: get_budget(conn, project, budget, channel=channel, with_project=channel is None)
    )
    if view is None:
        raise Refused("unknown_budget", "the project has no such budget")
    return view
