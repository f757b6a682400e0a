"""The checks of `turnstile doctor` on what is being served: streams, bridge, workers, worker targets, and tools.

A consumer with an open pull has a process that waits for its messages: a bridge for the doorbells of a target, a tool
for its commands. Workers are found by their rows in `state.workers`. The NATS users of bridges and workers may lack
permissions for some checks; such a check says so and does not fail. The only change made is one small message in each
stream.
"""

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnstile.doctor.checks import SECONDS, Check, looked
from turnstile.doctor.storage import check_storage
from turnstile.embedded import Endpoints
from turnstile.embedded.files import last_error
from turnstile.ledger.operations.monitor import (
    LiveWorker,
    TargetUse,
    ToolTarget,
    list_live_workers,
    list_target_uses,
    list_tool_targets,
)
from turnstile.ledger.pool import Pool
from turnstile.schema.errors import ConfigError
from turnstile.schema.ids import ChannelId, ProjectId
from turnstile.schema.parameters import checks
from turnstile.schema.wire import subjects
from turnstile.settings import Settings
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.stream_probe import (
    Consumer,
    NoStream,
    answers,
    find_listeners,
    list_consumers,
    named_consumers,
    probe_streams,
    tool_consumers,
    tool_pattern,
)
from turnstile.transport.streams import wakeup_consumer

_SIGNS_ON = "a running one signs on every 10 s, as long as it reaches the database and Temporal"
_LATE_SECONDS = 15.0
"""A worker whose row is older than this is late; it writes the row every ten seconds."""
_LINES = 20


@dataclass(frozen=True, slots=True)
class _Roster:
    """The worker targets, workers and tools in the ledger."""

    targets: list[TargetUse]
    workers: list[LiveWorker]
    tools: list[ToolTarget]


async def check_serving(settings: Settings, endpoints: Endpoints, nats_log: Path | None) -> list[Check]:
    """Lines about streams, bridge, workers, targets and tools. `nats_log` is the log of an embedded NATS, if any."""
    roster = await _roster_or_none(endpoints.database_url)
    says = "the agents could not be read, so workers, targets and tools are not checked"
    unread = [Check(name="agents and tools", status="warn", says=says, hint="see the line of PostgreSQL")]
    try:
        async with asyncio.timeout(SECONDS):
            conn = await connect(endpoints.nats_url, name="turnstile doctor", on_wait=lambda _: None)
    except (TimeoutError, ConfigError):  # the NATS check reports the cause
        return unread if roster is None else _workers(roster)
    try:
        streams = await looked("streams", lambda: check_streams(conn, nats_log))
        streams += await looked("NATS storage", lambda: check_storage(settings, endpoints, conn))
        bridge = await looked("bridge", lambda: _bridge(settings, conn))
        if roster is None:
            return [*streams, *bridge, *unread]
        consumers = await _listening(conn, roster)
    finally:
        await conn.close()
    return [*streams, *bridge, *_workers(roster), *_targets(settings, roster, consumers), *_tools(roster, consumers)]


async def _roster_or_none(url: str) -> _Roster | None:
    """The roster; None if it cannot be read, of which the check of PostgreSQL reports the cause."""
    rosters: list[_Roster] = []

    async def read() -> list[Check]:
        rosters.append(await _read_roster(url))
        return []

    await looked("agents and tools", read)
    return rosters[0] if rosters else None


async def _read_roster(url: str) -> _Roster:
    pool = Pool(url, size=1, name="turnstile doctor", patience=SECONDS)
    try:
        return _Roster(
            await pool.run(list_target_uses), await pool.run(list_live_workers), await pool.run(list_tool_targets)
        )
    finally:
        await pool.close()


async def check_streams(conn: NatsConnection, log: Path | None) -> list[Check]:
    """Whether each stream stores a message and returns it."""
    checks: list[Check] = []
    for stream, error in (await probe_streams(conn, remove=log is not None)).items():
        name = f"stream {stream}"
        if error is None:
            checks.append(Check(name=name, status="ok", says="stored a message and found it again"))
        elif isinstance(error, ConfigError):
            hint = "ask with the settings of a bridge or a worker"
            checks.append(Check(name=name, status="warn", says=str(error), hint=hint))
        elif isinstance(error, NoStream):
            hint = "`turnstile migrate` makes it; bridges and workers make one that is gone"
            checks.append(Check(name=name, status="fail", says=str(error), hint=hint))
        else:
            logged = last_error(log) if log is not None else ""
            says = f"{error}; the log of NATS says: {logged}" if logged else str(error)
            hint = "no event is published while it refuses: make room on its disk, see its log, then start NATS again"
            hint = f"{hint}, which `turnstile up` does by itself" if log is not None else hint
            checks.append(Check(name=name, status="fail", says=says, hint=hint))
    return checks


async def _bridge(settings: Settings, conn: NatsConnection) -> list[Check]:
    """Whether a bridge answers requests."""
    defaults = settings.protocol
    project, channel = ProjectId(defaults.default_project), ChannelId(defaults.default_channel)
    subject = subjects.bridge_request(project, channel, "describe")
    match await answers(conn, subject):
        case True:
            return [Check(name="bridge", status="ok", says="answers requests")]
        case False:
            hint = "start `turnstile bridge`, or `turnstile up`"
            return [Check(name="bridge", status="fail", says="none responds to requests", hint=hint)]
        case None:
            says = "this user may not send it requests; the lines of the targets show whether a bridge serves them"
            return [Check(name="bridge", status="ok", says=says)]


async def _listening(conn: NatsConnection, roster: _Roster) -> list[Consumer] | None:
    """The consumers, queried until each needed one has an open pull, for a moment. None if not permitted."""
    wakeups = [wakeup_consumer(target.worker_target) for target in roster.targets]
    patterns = [pattern for tool in roster.tools if (pattern := _pattern(tool)) is not None]

    async def ask() -> list[Consumer] | None:
        listed = await list_consumers(conn)
        return listed if listed is not None else await named_consumers(conn, [*wakeups, *_tool_consumers(roster)])

    return await find_listeners(lambda: _ask_or_none(ask), wakeups, patterns)


async def _ask_or_none(ask: Callable[[], Awaitable[list[Consumer] | None]]) -> list[Consumer] | None:
    """The result of `ask`, or None if it fails; the stream checks report the cause."""
    consumers: list[Consumer] | None = None

    async def look() -> list[Check]:
        nonlocal consumers
        consumers = await ask()
        return []

    return None if await looked("consumers", look) else consumers


def _workers(roster: _Roster) -> list[Check]:
    """One line for each worker that has a recent row in the ledger."""
    if not roster.workers:
        hint = f"start `turnstile worker`, or `turnstile up`; {_SIGNS_ON}"
        return [Check(name="workers", status="fail", says="none has signed on in the last 30 s", hint=hint)]
    instances: dict[str, list[LiveWorker]] = {}
    for worker in roster.workers:
        instances.setdefault(worker.instance, []).append(worker)
    return [
        _worker(name, [worker.worker_target for worker in group], min(worker.seen_seconds for worker in group))
        for name, group in instances.items()
    ]


def _worker(name: str, targets: Iterable[str], seen_seconds: float) -> Check:
    says = f"serves {', '.join(targets)}, signed on {seen_seconds:.0f} s ago"
    if seen_seconds <= _LATE_SECONDS:
        return Check(name=f"worker {name}", status="ok", says=says)
    hint = f"it has ended, or cannot sign on: {_SIGNS_ON}"
    return Check(name=f"worker {name}", status="warn", says=says, hint=hint)


def _targets(settings: Settings, roster: _Roster, consumers: list[Consumer] | None) -> list[Check]:
    """Whether each target that agents and profiles name has a worker and a bridge."""
    if not roster.targets:
        return [Check(name="targets", status="ok", says="no agent or profile names one yet")]
    served = sorted({worker.worker_target for worker in roster.workers} | set(settings.worker.worker_targets))
    return _capped("targets", [_target(use, roster.workers, consumers, served) for use in roster.targets])


def _target(
    use: TargetUse, workers: Sequence[LiveWorker], consumers: list[Consumer] | None, served: Sequence[str]
) -> Check:
    name = f"target {use.worker_target}"
    serving = [worker for worker in workers if worker.worker_target == use.worker_target]
    here = sum(worker.seen_seconds <= _LATE_SECONDS for worker in serving)
    rings = (
        None
        if consumers is None
        else any(consumer.listens for consumer in consumers if consumer.name == wakeup_consumer(use.worker_target))
    )
    named = _count(use.agents, "agent", "agents"), _count(use.profiles, "profile", "profiles")
    who = f"named by {' and '.join(named)}, such as {use.example}"
    nobody = (
        f"no worker has signed on for {min(worker.seen_seconds for worker in serving):.0f} s"
        if serving
        else "no worker serves it"
    )
    missing = [*([] if here else [nobody]), *(["no bridge serves it"] if rings is False else [])]
    if not missing:
        rung = "" if rings else "; this user may not ask whether a bridge serves it"
        return Check(name=name, status="ok", says=f"{_count(here, 'worker serves', 'workers serve')} it{rung}")
    if use.worker_target in served:
        command = "worker" if rings else "bridge" if here else "up"
        hint = f"start `turnstile {command}`" if command == "up" else f"start `turnstile {command}`, or `turnstile up`"
        hint = f"{hint}; {_SIGNS_ON}" if serving and not here else hint
    else:
        close = difflib.get_close_matches(use.worker_target, served, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        hint = f"name it in [worker].worker_targets of a worker and a bridge, and start them{meant}"
    status = "fail" if use.agents else "warn"
    return Check(name=name, status=status, says=f"{' and '.join(missing)}: {who}", hint=hint)


def _tools(roster: _Roster, consumers: list[Consumer] | None) -> list[Check]:
    """Whether a process waits for the commands of each tool."""
    if not roster.tools:
        return []
    if consumers is None:
        says = f"this user may not ask which processes serve {len(roster.tools)} tools"
        return [Check(name="tools", status="warn", says=says, hint="ask with the settings of a bridge")]
    lines = [_tool(tool, consumers) for tool in roster.tools]
    return _capped("tools", lines)


def _tool(tool: ToolTarget, consumers: Sequence[Consumer]) -> Check:
    name = f"tool {tool.tool_name} of {tool.project_id}"
    if tool.missed_by is not None:
        says = f"it is not there, and does the turns of the profile {tool.missed_by}: they fail as unknown_tool"
        return Check(name=name, status="fail", says=says, hint="store it with `turnstile tool put`")
    pattern = _pattern(tool)
    if pattern is None:
        says = f"its target_subject {tool.target_subject!r} is no subject of a tool"
        return Check(name=name, status="warn", says=says, hint="correct it with `turnstile tool put`")
    if (problem := _unenforced(tool)) is not None:
        hint = "write the schema without it and `turnstile tool put` it; until then its calls are refused"
        return Check(name=name, status="warn", says=f"the schema of its parameters {problem}", hint=hint)
    listening = [consumer for consumer in consumers if consumer.takes(pattern)]
    if any(consumer.listens for consumer in listening):
        return Check(name=name, status="ok", says="a process listens")
    if held := sum(consumer.num_ack_pending for consumer in listening):
        hint = "the tool is busy, or it has ended; then its calls are delivered again when it starts"
        says = f"{held} calls were delivered and not acknowledged, and no process asks for more"
        return Check(name=name, status="warn", says=says, hint=hint)
    hint = "start its program; until then its calls wait, and end as timeouts (`turnstile docs tools`)"
    return Check(name=name, status="fail", says=f"no process listens on {pattern}", hint=hint)


def _unenforced(tool: ToolTarget) -> str | None:
    """What of the tool's schema cannot be enforced, as rows of other writers may have it."""
    try:
        checks(tool.parameters if isinstance(tool.parameters, dict) else {})
    except ValueError as error:
        return str(error)
    return None


def _pattern(tool: ToolTarget) -> str | None:
    return tool_pattern(tool.target_subject, tool.project_id)


def _tool_consumers(roster: _Roster) -> list[str]:
    """The consumer names that `ToolService` gives these tools."""
    names = [name for tool in roster.tools for name in tool_consumers(_pattern(tool) or "", tool.project_id)]
    return list(dict.fromkeys(names))


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _capped(name: str, lines: Sequence[Check]) -> list[Check]:
    """The lines ordered by status, failures first; beyond `_LINES` one line counts the rest."""
    order = {"fail": 0, "warn": 1, "ok": 2}
    lines = sorted(lines, key=lambda line: order[line.status])
    kept, left = lines[:_LINES], lines[_LINES:]
    if not left:
        return kept
    worst = left[0].status
    return [*kept, Check(name=name, status=worst, says=f"and {len(left)} more")]
