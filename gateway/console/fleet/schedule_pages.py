"""Schedules: when each fires next, what came of its last firings, and pause, resume and run now (protocol §20)."""

from typing import Literal

from pydantic import Field
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import render, see_other
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.http.endpoints import NoQuery
from turnstile.ledger.schedules import ScheduleRow, find_schedule, list_firings, list_schedules
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.base import Strict
from turnstile.schema.ids import uuid7
from turnstile.schema.wire.schedule_requests import ScheduleRequest, ScheduleTriggerRequest

SCHEDULES = f"{CONSOLE}/schedules"
_PAGE = 50
_VERBS = {"pause": verbs.SCHEDULE_PAUSE, "resume": verbs.SCHEDULE_RESUME}
_DONE = {"pause": "schedule_paused", "resume": "schedule_resumed"}


class SchedulesQuery(Strict):
    """A page of schedules."""

    after: str = Field(default="", max_length=64)
    """Only those that follow this one."""


class ScheduleForm(Strict):
    """What shall become of a schedule."""

    action: Literal["pause", "resume", "trigger"]
    key: str = Field(default="", max_length=128)
    """Drawn by the page: of a form that is sent twice one turn is made."""


def pages(_: Console) -> tuple[Page, ...]:
    """The pages."""
    one = f"{SCHEDULES}/{{schedule_id}}"
    return (
        Page(name="schedules", path=SCHEDULES, handler=show_schedules, query=SchedulesQuery),
        Page(name="schedule", path=one, handler=show_schedule),
        Page(
            name="schedule_change",
            path=f"{one}/change",
            method="POST",
            right=Right.ASK,
            handler=change_schedule,
            form=ScheduleForm,
        ),
    )


async def show_schedules(visit: Visit[SchedulesQuery, NoForm]) -> Response:
    """A page of schedules, of the token's channel or of all."""
    principal, after = visit.principal, visit.query.after
    rows = await visit.console.pool.run(
        lambda conn: list_schedules(conn, principal.project_id, principal.channel_id, after, _PAGE + 1)
    )
    page = [row.shown() for row in rows[:_PAGE]]
    more = page[-1].schedule_id if len(rows) > _PAGE else None
    return render(visit, "fleet/schedules.html", schedules=page, after=more)


async def show_schedule(visit: Visit[NoQuery, NoForm]) -> Response:
    """A schedule with its next times and its last firings."""
    row = await _seen(visit)
    firings = await visit.console.pool.run(lambda conn: list_firings(conn, row.project_id, row.schedule_id))
    schedule = row.view(firings, times=True)
    may_change = visit.may("ask") and (visit.may("operate") or row.owner == visit.principal.sender)
    return render(visit, "fleet/schedule.html", schedule=schedule, may_change=may_change, key=uuid7())


async def change_schedule(visit: Visit[NoQuery, ScheduleForm]) -> Response:
    """Pause or resume a schedule, or make a turn of it now; the bridge does it for whoever may."""
    row, form, asking = await _seen(visit), visit.form, visit.console.asking
    if form.action == "trigger":
        request = ScheduleTriggerRequest(schedule_id=row.schedule_id, correlation_id=form.key or None)
        made = await asking.ask(visit.principal, row.channel_id, verbs.SCHEDULE_TRIGGER, request, visit.headers)
        return see_other(f"{CONSOLE}/turns/{part(made.agent_turn_id)}", "triggered")
    named = ScheduleRequest(schedule_id=row.schedule_id)
    await asking.ask(visit.principal, row.channel_id, _VERBS[form.action], named, visit.headers)
    return see_other(f"{SCHEDULES}/{part(row.schedule_id)}", _DONE[form.action])


async def _seen(visit: Visit[NoQuery, NoForm] | Visit[NoQuery, ScheduleForm]) -> ScheduleRow:
    """The schedule of the address; raises `Refused` (unknown_schedule)."""
    principal, name = visit.principal, visit.path["schedule_id"]
    return await visit.console.pool.run(
        lambda conn: find_schedule(conn, principal.project_id, principal.channel_id, name)
    )
