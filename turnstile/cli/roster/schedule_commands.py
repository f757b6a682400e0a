"""`turnstile schedule`: turns that are asked for at times: put, list, show, pause, resume, trigger and remove them."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnstile.cli.command import command
from turnstile.cli.output import clock
from turnstile.schema.amounts import amount

if TYPE_CHECKING:
    from turnstile.cli.session import Session
    from turnstile.schema.base import JsonObject
    from turnstile.schema.verbs import Verb
    from turnstile.schema.wire.schedule_requests import Firing, ScheduleReply, ScheduleView

app = typer.Typer()
Id = Annotated[str, typer.Argument(help="The schedule's name.", metavar="ID")]


@command(app, "put", project=True, channel=True, client=True)
async def put(
    session: "Session",
    schedule_id: Annotated[str | None, typer.Argument(help="Your own name for the schedule.", metavar="[ID]")] = None,
    instruction: Annotated[str | None, typer.Argument(help="What each turn is asked.", metavar="[TEXT]")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="A YAML file with one schedule; repeat.", metavar="FILE")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The agent that is asked.", metavar="AGENT")] = None,
    profile: Annotated[str | None, typer.Option(help="A profile whose instances are asked.", metavar="NAME")] = None,
    cron: Annotated[str | None, typer.Option(help="Five fields, such as '0 9 * * 1-5'.", metavar="CRON")] = None,
    timezone: Annotated[str | None, typer.Option(help="Of --cron, such as Europe/Berlin.", metavar="ZONE")] = None,
    every: Annotated[str | None, typer.Option(help="An interval, such as 90s, 15m, 6h or 1d.", metavar="TIME")] = None,
    at: Annotated[str | None, typer.Option(help="Once, such as 2027-01-31T12:00+01:00.", metavar="TIME")] = None,
    conversation: Annotated[str | None, typer.Option(help="The conversation of all turns.", metavar="ID")] = None,
    overlap: Annotated[
        str | None, typer.Option(help="enqueue, reject, interrupt or allow: if an earlier turn is not over.")
    ] = None,
    catchup: Annotated[str | None, typer.Option(help="How late a turn may be; by default 1h.", metavar="TIME")] = None,
) -> None:
    """Put a schedule, by options or from YAML files. The same name again replaces it."""
    from turnstile.schema import verbs
    from turnstile.schema.errors import BadRequest
    from turnstile.schema.wire.schedule_requests import SchedulePutRequest
    from turnstile.sdk.requests import parse_request
    from turnstile.settings.yaml_files import read_schedule

    requests = [read_schedule(path) for path in file or []]
    if schedule_id is not None:
        fields: dict[str, Any] = {
            "schedule_id": schedule_id,
            "instruction": instruction,
            "agent_id": agent,
            "profile_name": profile,
            "cron": cron,
            "timezone": timezone,
            "every_seconds": None if every is None else _seconds(every, "--every"),
            "at": at,
            "conversation_id": conversation,
            "overlap": overlap,
            "catchup_seconds": None if catchup is None else _seconds(catchup, "--catchup"),
        }
        given = {name: value for name, value in fields.items() if value is not None}
        requests.append(parse_request(SchedulePutRequest, given))
    if not requests:
        raise BadRequest("name a schedule, or a file with --file")
    replies: list[ScheduleReply] = []
    async with session.client() as client:
        for request in requests:
            reply = await client.call(verbs.SCHEDULE_PUT, request)
            replies.append(reply)
            if not session.out.as_json and reply.schedule is not None:
                session.out.line(f"schedule {request.schedule_id} is put", note=_next(reply.schedule))
    if session.out.as_json:
        session.out.document([reply.schedule for reply in replies if reply.schedule is not None])


@command(app, "list", project=True, channel=True, client=True)
async def show_all(session: "Session") -> None:
    """List the schedules of the channel."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.schedule_requests import ScheduleListRequest

    found: list[ScheduleView] = []
    after: str | None = None
    async with session.client() as client:
        while not found or after is not None:
            page = await client.call(verbs.SCHEDULE_LIST, ScheduleListRequest(after=after))
            found += page.schedules
            if (after := page.next) is None:
                break
    session.out.records(
        f"schedules of {session.project}",
        found,
        {
            "schedule": lambda row: row.schedule_id,
            "asks": lambda row: row.settings.get("agent_id") or row.settings.get("profile_name"),
            "when": lambda row: when(row.settings),
            "next": _next,
            "last": lambda row: "" if row.last is None else _came(row.last),
            "owner": lambda row: row.owner,
        },
    )


@command(app, "show", project=True, channel=True, client=True)
async def show_one(session: "Session", schedule_id: Id) -> None:
    """Show a schedule with its next times and last firings."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.schedule_requests import ScheduleRequest
    from turnstile.sdk.requests import parse_request

    request = parse_request(ScheduleRequest, {"schedule_id": schedule_id})
    async with session.client() as client:
        schedule = (await client.call(verbs.SCHEDULE_GET, request)).schedule
    if session.out.as_json or schedule is None:
        session.out.document(schedule)
        return
    settings = schedule.settings
    session.out.facts(
        f"schedule {schedule.schedule_id}",
        {
            "asks": settings.get("agent_id") or settings.get("profile_name"),
            "instruction": settings.get("instruction"),
            "when": when(settings),
            "owner": schedule.owner,
            "paused": schedule.paused_because,
            "next": ", ".join(clock(at) for at in schedule.upcoming) if schedule.paused_at is None else None,
        },
    )
    session.out.records(
        "firings",
        list(schedule.firings),
        {
            "time": lambda row: clock(row.nominal_at),
            "fired": lambda row: clock(row.fired_at),
            "turn": lambda row: row.agent_turn_id or "",
            "refused": lambda row: row.code or "",
            "why": lambda row: row.error or "",
            "triggered by": lambda row: row.triggered_by or "",
        },
    )


@command(app, "pause", project=True, channel=True, client=True)
async def pause(session: "Session", schedule_id: Id) -> None:
    """Let a schedule fire no more until it is resumed."""
    from turnstile.schema import verbs

    await _change(session, verbs.SCHEDULE_PAUSE, schedule_id, "is paused")


@command(app, "resume", project=True, channel=True, client=True)
async def resume(session: "Session", schedule_id: Id) -> None:
    """Let a paused schedule fire from its next time on."""
    from turnstile.schema import verbs

    await _change(session, verbs.SCHEDULE_RESUME, schedule_id, "is resumed")


@command(app, "remove", project=True, channel=True, client=True)
async def remove(session: "Session", schedule_id: Id) -> None:
    """Remove a schedule with its firings; its turns stay."""
    from turnstile.schema import verbs

    await _change(session, verbs.SCHEDULE_REMOVE, schedule_id, "is removed")


@command(app, "trigger", project=True, channel=True, client=True)
async def trigger(
    session: "Session",
    schedule_id: Id,
    key: Annotated[str | None, typer.Option(help="A repeat with the same key makes no second turn.")] = None,
) -> None:
    """Enqueue a turn of a schedule now, paused or not."""
    from turnstile.schema import verbs
    from turnstile.schema.ids import uuid7
    from turnstile.schema.wire.schedule_requests import ScheduleTriggerRequest
    from turnstile.sdk.requests import parse_request

    fields: JsonObject = {"schedule_id": schedule_id, "correlation_id": key or str(uuid7())}
    async with session.client() as client:
        reply = await client.call(verbs.SCHEDULE_TRIGGER, parse_request(ScheduleTriggerRequest, fields))
    session.out.result(reply, f"turn {reply.agent_turn_id} is enqueued")


async def _change(session: "Session", verb: "Verb[Any, ScheduleReply]", schedule: str, said: str) -> None:
    from turnstile.schema.wire.schedule_requests import ScheduleRequest
    from turnstile.sdk.requests import parse_request

    async with session.client() as client:
        reply = await client.call(verb, parse_request(ScheduleRequest, {"schedule_id": schedule}))
    session.out.result(reply.schedule, f"schedule {schedule} {said}")


def when(settings: dict[str, Any]) -> str:
    """When a schedule of these settings fires."""
    if (cron := settings.get("cron")) is not None:
        return f"{cron} ({settings.get('timezone', 'UTC')})"
    if (every := settings.get("every_seconds")) is not None:
        return f"every {amount(every)} s"
    return f"at {settings.get('at')}"


def _next(schedule: "ScheduleView") -> str:
    if schedule.paused_at is not None:
        return f"paused: {schedule.paused_because}"
    return "over" if schedule.next_at is None else clock(schedule.next_at)


def _came(firing: "Firing") -> str:
    return f"{clock(firing.nominal_at)} {firing.code or firing.agent_turn_id}"


def _seconds(text: str, option: str) -> float:
    import re

    from turnstile.cli.moments import UNITS
    from turnstile.schema.errors import BadRequest

    if (found := re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhdw])", text)) is None:
        raise BadRequest(f"{option} takes a length of time such as 90s, 15m, 6h or 1d, got {text[:40]!r}")
    return float(found[1]) * UNITS[found[2]]
