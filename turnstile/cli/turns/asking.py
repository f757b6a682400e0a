"""Enqueues a turn, over NATS or directly into the ledger, and with `--wait` follows it to its end.

It waits for a bridge before it sends the request, so that the request is sent once, and subscribes before that, so that
it misses no event of the turn.
"""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import JsonValue

from turnstile.cli.errors import REFUSED, CommandFailed
from turnstile.cli.session import HEADERS, SENDER, Session
from turnstile.cli.turns.follow import explaining_interrupt, follow_turn, look_at, printing_outages, wait_turn, ways_of
from turnstile.cli.turns.live import LiveView
from turnstile.cli.turns.turn_report import document_of, link_of, print_deliverable, read_end
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId, uuid7
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire.inbox import EnqueueReply, EnqueueRequest, StopReply
from turnstile.sdk.client import BridgeClient, accepted
from turnstile.sdk.nats_turns import turn_of
from turnstile.sdk.requests import parse_request

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of `enqueue`."""

    agent: str | None
    """None where the profile's instances are asked."""
    text: str | None
    """None if the turn reads only a context box."""
    correlation_id: str | None = None
    fields: str | None = None
    profile: str | None = None
    model: str | None = None
    context_box_id: str | None = None
    conversation: str | None = None
    output_box_id: str | None = None
    remember: bool = False


async def ask(session: Session, question: Question, *, wait: bool, direct: bool) -> None:
    """Enqueue it and print the reply; with `wait` follow the turn, raising `CommandFailed` if it does not succeed."""
    request = request_of(question)
    if direct:
        async with session.ledger() as pool:
            reply = await _enqueue_directly(session, pool, request)
            _print_reply(session, reply, wait=wait)
            if wait:
                turn = turn_of(reply)
                with explaining_interrupt(session, f"turn {turn}", ways_of(turn)):
                    await wait_turn(session, pool, turn)
                await print_end(session, pool, turn_of(reply))
    elif wait:
        async with session.ledger_if_installed() as pool:
            with _naming_direct():
                turn, shown = await ask_and_follow(session, pool, request, goes_on=True)
            await print_end(session, pool, turn, shown)
    else:
        with _naming_direct():
            async with session.bridge() as client:
                _print_reply(session, await enqueue(session, client, request), wait=False)


@contextmanager
def _naming_direct() -> Generator[None]:
    """Add to an error that `--direct` needs neither bridge nor NATS."""
    try:
        yield
    except ServerUnavailable as error:
        error.add_note("`enqueue --direct` needs the database alone")
        raise


async def ask_and_follow(
    session: Session, pool: "Pool | None", request: EnqueueRequest, *, goes_on: bool = False
) -> tuple[AgentTurnId, str]:
    """Enqueue over NATS and show the turn live until it has ended; returns its id and the text that was shown last.

    With `goes_on` the turn outlives this process: Ctrl-C prints how to find it again.
    """
    async with session.nats() as conn:
        client = BridgeClient(conn, session.project, session.channel)
        async with client.watching(client.agent_of(request), include_chunks=True) as events:
            reply = await enqueue(session, client, request)
            _print_reply(session, reply, wait=True)
            turn = turn_of(reply)
            # with --json one document is printed, so nothing is streamed
            view = LiveView(session.out, turn, events=False, silent=session.out.as_json)
            interrupt = explaining_interrupt(session, f"turn {turn}", ways_of(turn)) if goes_on else nullcontext()
            with printing_outages(session, conn), interrupt:
                await follow_turn(session, look_at(session, pool, client, turn), events, view)
            return turn, view.last_text


async def enqueue(session: Session, client: BridgeClient, request: EnqueueRequest) -> EnqueueReply:
    """The bridge's reply; raises `Refused` with its code, `NoBridge`, or `ServerUnavailable`."""
    await session.await_bridge(client)
    try:
        answer = await client.request("enqueue", request, headers=HEADERS)
    except ServerUnavailable as error:
        raise ServerUnavailable(
            f"{error}; it may have been accepted: look at `turnstile turn list`. "
            "With a --correlation-id a request can be repeated safely"
        ) from None
    return accepted(EnqueueReply, answer)


async def stop_turn(
    session: Session, turn: str, reason: str, cascade: Literal["waited", "all"] = "waited"
) -> StopReply:
    """Ask the bridge to end the turn and what is below it; raises `Refused` with its code, or `NoBridge`."""
    request: JsonObject = {"agent_turn_id": turn, "reason": reason, "cascade": cascade}
    async with session.bridge() as client:
        return accepted(StopReply, await session.patiently(lambda: client.request("stop", request)))


def told_of_stop(turn: str, reply: StopReply) -> str:
    """What a stop has done, in one line: the turn, those below it, and what may still arrive."""
    below = reply.marked - (0 if reply.already_final else 1)
    line = f"turn {turn} {'was over already' if reply.already_final else 'is being stopped'}"
    if below > 0:
        line += f", with {below} turn{'s' if below > 1 else ''} below it"
    if reply.on_their_way:
        line += f"; {reply.on_their_way} had a step or calls on their way, which may still arrive"
    return line


async def print_end(session: Session, pool: "Pool | None", turn: AgentTurnId, shown: str = "") -> None:
    """Print the deliverable of a turn that has ended, if it is not the text just `shown`.

    Raises `CommandFailed` unless the turn succeeded.
    """
    report = await read_end(pool, session, turn)
    view = report.turn
    if session.out.as_json:
        session.out.document(document_of(report, link_of(session, turn)))
        session.exit_code = 0 if view.status == TurnStatus.SUCCESS else REFUSED
        return
    print_deliverable(session.out, report, shown)
    if view.status != TurnStatus.SUCCESS:
        why = f": {view.error}" if view.error else ""
        raise CommandFailed(view.error_code or "turn_failed", f"turn {turn} ended as {view.status}{why}")


def request_of(question: Question) -> EnqueueRequest:
    """The request; raises `BadRequest` naming the option that is wrong."""
    config: dict[str, JsonValue] = {"model": question.model, "remember": question.remember or None}
    chosen: JsonObject = {name: value for name, value in config.items() if value is not None}
    named: dict[str, JsonValue] = {
        "agent_id": question.agent,
        "instruction": question.text,
        "correlation_id": question.correlation_id,
        "profile_name": question.profile,
        "conversation_id": question.conversation,
        "context_box_id": question.context_box_id,
        "output_box_id": question.output_box_id,
        "runtime_config": chosen or None,
    }
    given: JsonObject = {name: value for name, value in named.items() if value is not None}
    if question.agent is None and not (question.correlation_id or question.conversation):
        given["correlation_id"] = uuid7()  # the instance that runs the turn has a known id
    if question.fields is not None:
        given["result_fields"] = [{"name": name.strip()} for name in question.fields.split(",") if name.strip()]
    return parse_request(EnqueueRequest, given)


async def _enqueue_directly(session: Session, pool: "Pool", request: EnqueueRequest) -> EnqueueReply:
    from turnstile.ledger.turns import intake  # noqa: PLC0415 -- needs the extra [server]

    settings = session.settings
    done = await intake.enqueue(
        pool,
        session.project,
        session.channel,
        request,
        {},
        depth_limit=settings.protocol.max_recursion_depth,
        sender=SENDER,
        admission=settings.limits.admission,
    )
    return done.reply


def _print_reply(session: Session, reply: EnqueueReply, *, wait: bool) -> None:
    if session.out.as_json:
        if not wait:
            session.out.document(reply)
        return
    again = ", as before" if reply.duplicate else ""
    session.out.line(f"turn {reply.agent_turn_id} is {reply.inbox_status}{again}", style="dim" if wait else "")
