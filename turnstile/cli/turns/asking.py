"""Enqueues a turn, by the client of Python programs or directly into the ledger, and with `--wait` follows it.

Over NATS it waits for a bridge before it sends the request, so that the request is sent once, and subscribes before
that, so that it misses no event of the turn.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from turnstile.cli.errors import REFUSED, CommandFailed
from turnstile.cli.session import SENDER, Session
from turnstile.cli.turns.follow import explaining, explaining_interrupt, wait_directly, ways_of
from turnstile.cli.turns.live import LiveView
from turnstile.cli.turns.turn_report import (
    TurnEnd,
    document_of,
    link_of,
    print_deliverable,
    read_report,
    report_from,
)
from turnstile.schema.access import Caller
from turnstile.schema.amounts import amount
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, ServerUnavailable
from turnstile.schema.ids import AgentTurnId, uuid7
from turnstile.schema.ledger_reads import ReadReply, ReadRequest
from turnstile.schema.people.reruns import RerunRequest
from turnstile.schema.people.steers import SteerReply
from turnstile.schema.profiles import RuntimeConfig
from turnstile.schema.states import HeadStatus, MultitaskStrategy, ReplyStatus, TurnStatus
from turnstile.schema.wire.descriptions import TurnView
from turnstile.schema.wire.inbox import EnqueueReply, EnqueueRequest
from turnstile.sdk.nats_turns import turn_of
from turnstile.sdk.requests import parse_request
from turnstile.sdk.turn import Cascade, Stopped, Turn
from turnstile.sdk.turns import Client

OVER_SECONDS = 5.0
"""What a stopped turn has to end before the command says what it waits for."""


@dataclass(frozen=True, slots=True)
class EnqueueArguments:
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
    multitask: MultitaskStrategy = MultitaskStrategy.ENQUEUE
    budget: JsonObject | None = None
    output_schema: JsonObject | None = None
    end_user: str | None = None
    attached: Sequence[str] = ()
    """Paths, and ids of files."""


async def ask(session: Session, question: EnqueueArguments, *, wait: bool, direct: bool) -> None:
    """Enqueue it and print the reply; with `wait` follow the turn, raising `CommandFailed` if it does not succeed."""
    request = request_of(question, repeatable=session.gateway is not None)
    if direct and question.multitask is not MultitaskStrategy.ENQUEUE:
        raise BadRequest("--multitask stops or steers other turns, which only a bridge does: leave out --direct")
    if question.attached:
        request = await _with_files(session, request, question.attached)
    if direct:
        await _ask_directly(session, request, wait=wait)
        return
    with _naming_direct(session):
        async with session.client() as client:
            turn = client.ask_for(request)
            if not wait:
                _print_reply(session, await enqueue(session, client, turn), wait=False)
                return
            shown = await follow(session, client, turn, goes_on=True)
            print_end(session, await read_report(session, client, turn), shown)


async def _with_files(session: Session, request: EnqueueRequest, attached: Sequence[str]) -> EnqueueRequest:
    """The request with its files, which a gateway takes; those of a request of one key are the same again."""

    def is_id(named: str) -> bool:
        return named.startswith("file-") and not Path(named).exists()

    ids, key = list[str](), request.correlation_id or uuid7()
    async with session.web() as client:
        for number, named in enumerate(attached):
            if is_id(named):
                ids.append(named)
                continue
            view = await session.patiently(
                lambda named=named, number=number: client.files.put(Path(named), correlation_id=f"{key}/{number}")
            )
            ids.append(view.artifact_id)
    fields: JsonObject = {**request.model_dump(mode="json", exclude_unset=True), "files": [*ids]}
    return parse_request(EnqueueRequest, fields)


@contextmanager
def _naming_direct(session: Session) -> Generator[None]:
    """Add to an error that `--direct` needs neither bridge nor NATS."""
    try:
        yield
    except ServerUnavailable as error:
        if session.gateway is None:
            error.add_note("`enqueue --direct` needs only the database")
        raise


@dataclass(frozen=True, slots=True)
class RerunArguments:
    """The arguments of `turn rerun`."""

    turn: str
    from_step: int | None = None
    settings: JsonObject | None = None
    correlation_id: str | None = None
    budget: JsonObject | None = None

    def request(self, turn: AgentTurnId) -> RerunRequest:
        """The request; raises `BadRequest` naming the option that is wrong."""
        fields: dict[str, JsonValue] = {"agent_turn_id": turn, "from_step": self.from_step}
        if self.settings is not None:
            parse_request(RuntimeConfig, self.settings)  # its errors name the setting
        fields |= {"runtime_config": self.settings, "correlation_id": self.correlation_id or uuid7()}
        fields |= {"budget": self.budget}
        return parse_request(RerunRequest, {name: value for name, value in fields.items() if value is not None})


async def run_again(session: Session, again: RerunArguments, *, wait: bool) -> None:
    """Run a turn again and print the reply; with `wait` follow the new turn, as `ask` does."""
    async with session.client() as client:
        old = await session.patiently(lambda: client.turn(again.turn))
        turn = old.again(again.request(await old.start()))
        if not wait:
            _print_reply(session, await enqueue(session, client, turn), wait=False)
            return
        shown = await follow(session, client, turn, goes_on=True)
        print_end(session, await read_report(session, client, turn), shown)


async def follow(session: Session, client: Client, turn: Turn, *, goes_on: bool = False) -> str:
    """Start a turn and show it live until it has ended; returns the text that was shown last.

    With `goes_on` the turn outlives this process: Ctrl-C prints how to find it again.
    """
    async with turn.chunks() as chunks:
        _print_reply(session, await enqueue(session, client, turn), wait=True)
        named = await turn.start()
        # with --json one document is printed, so nothing is streamed
        view = LiveView(session.out, named, events=False, silent=session.out.as_json)
        interrupt = explaining_interrupt(session, f"turn {named}", ways_of(named)) if goes_on else nullcontext()
        with interrupt:
            try:
                async with explaining(session, turn):
                    async for chunk in chunks:
                        view.take_chunk(chunk)
            finally:
                view.close()
    return view.last_text


async def ask_and_follow(session: Session, client: Client, request: EnqueueRequest) -> AgentTurnId:
    """Enqueue a turn, show it live until it has ended, and return its id."""
    turn = client.ask_for(request)
    await follow(session, client, turn)
    return await turn.start()


async def enqueue(session: Session, client: Client, turn: Turn) -> EnqueueReply:
    """Start the turn; returns the reply. Raises `Refused` with its code, `NoBridge`, or `ServerUnavailable`."""
    if session.gateway is not None:  # the request has a correlation id, so it may be repeated
        await session.patiently(turn.start)
    else:
        await session.await_bridge(client.bridge)
        try:
            await turn.start()
        except ServerUnavailable as error:
            raise ServerUnavailable(
                f"{error}; it may have been accepted: look at `turnstile turn list`. "
                "With a --correlation-id a request can be repeated safely"
            ) from None
    assert turn.reply is not None  # noqa: S101 -- it was started here
    return turn.reply


async def stop_turn(
    session: Session, turn: str, reason: str, cascade: Cascade = "waited"
) -> tuple[Stopped, TurnView | None]:
    """End the turn and what is below it, and wait until it is over, at most `OVER_SECONDS`.

    Returns the answer, and how the turn then stands if it is not over. Raises `Refused` with its code, `NoBridge` or
    `ServerUnavailable`.
    """
    async with session.client() as client:
        running = await session.patiently(lambda: client.turn(turn))
        reply = await session.patiently(lambda: running.stop(reason, cascade=cascade))
        try:
            await running.result(OVER_SECONDS)
        except TimeoutError:
            view = await session.patiently(running.describe)
            return reply, None if view.ended_at else view
        return reply, None


def told_of_wait(view: TurnView) -> str:
    """What a turn waits for that was stopped and is not over."""
    match view.status:
        case HeadStatus.SUSPENDED:
            what = f"its workflow has not received the stop; it waits for {view.waiting_tool_count or 0} calls"
        case HeadStatus.RUNNING:
            what = "the step that its worker is running has not ended"
        case _:
            what = f"it is {view.status}"
    return (
        f"turn {view.agent_turn_id} is not over after {amount(OVER_SECONDS)} s: {what}. "
        "A bridge of its target ends it by force: `turnstile doctor` shows whether one runs"
    )


def told_of_stop(turn: str, reply: Stopped, *, over: bool = True) -> str:
    """What a stop has done, in one line: the turn, those below it, and what may still arrive."""
    below = reply.marked - (0 if reply.already_final else 1)
    line = f"turn {turn} {'was over already' if reply.already_final else 'is stopped' if over else 'is being stopped'}"
    if below > 0:
        line += f", with {below} turn{'s' if below > 1 else ''} below it"
    if reply.on_their_way:
        line += f"; {reply.on_their_way} had a step or calls in progress, whose results may still arrive"
    return line


async def steer_turn(
    session: Session, turn: str, text: str, *, when_idle: bool = False, correlation_id: str | None = None
) -> SteerReply:
    """Say something to the turn; raises as `stop_turn` does. It is said once, however often it must be asked."""
    name = correlation_id or uuid7()
    async with session.client() as client:
        running = await session.patiently(lambda: client.turn(turn))
        return await session.patiently(lambda: running.steer(text, when_idle=when_idle, correlation_id=name))


def told_of_steer(turn: str, reply: SteerReply, *, when_idle: bool = False) -> str:
    """What becomes of a steer, in one line."""
    if reply.duplicate:
        return f"turn {turn} already has this message: {reply.steer_status}"
    return f"turn {turn} reads it {'when it would otherwise end' if when_idle else 'in its next step'}"


def print_end(session: Session, report: TurnEnd, shown: str = "") -> None:
    """Print the deliverable of a turn that has ended, if it is not the text just `shown`.

    Raises `CommandFailed` unless the turn succeeded.
    """
    view = report.turn
    turn = view.agent_turn_id
    if session.out.as_json:
        session.out.document(document_of(report, link_of(session, turn)))
        session.exit_code = 0 if view.status == TurnStatus.SUCCESS else REFUSED
        return
    print_deliverable(session.out, report, shown)
    if view.status != TurnStatus.SUCCESS:
        why = f": {view.error}" if view.error else ""
        raise CommandFailed(view.error_code or "turn_failed", f"turn {turn} ended as {view.status}{why}")


def request_of(question: EnqueueArguments, *, repeatable: bool = False) -> EnqueueRequest:
    """The request; a `repeatable` one has a correlation id. Raises `BadRequest` naming the option that is wrong."""
    config: dict[str, JsonValue] = {"model": question.model, "remember": question.remember or None}
    config["output_schema"] = question.output_schema
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
        "budget": question.budget,
        "end_user": question.end_user,
        "multitask_strategy": None if question.multitask is MultitaskStrategy.ENQUEUE else question.multitask,
    }
    fields: JsonObject = {name: value for name, value in named.items() if value is not None}
    of_instance = question.agent is None and not question.conversation  # the instance then has a known id
    if question.correlation_id is None and (repeatable or of_instance):
        fields["correlation_id"] = uuid7()
    if question.fields is not None:
        fields["result_fields"] = [{"name": name.strip()} for name in question.fields.split(",") if name.strip()]
    return parse_request(EnqueueRequest, fields)


async def _ask_directly(session: Session, request: EnqueueRequest, *, wait: bool) -> None:
    """Write the turn into the database, and with `wait` read there until it has ended: NATS may be away."""
    from turnstile.bridge.verbs.ledger_reads import LedgerReads  # noqa: PLC0415 -- needs the extra [server]
    from turnstile.ledger.turns import intake  # noqa: PLC0415 -- as above

    settings = session.settings
    async with session.ledger() as pool:
        enqueued = await intake.enqueue(
            pool,
            session.project,
            session.channel,
            request,
            {},
            depth_limit=settings.protocol.max_recursion_depth,
            sender=SENDER,
            admission=settings.limits.admission,
            caller=Caller(SENDER, operates=True),
        )
        _print_reply(session, enqueued.reply, wait=wait)
        if not wait:
            return
        turn, reads = turn_of(enqueued.reply), LedgerReads(pool)

        async def read(request: ReadRequest) -> ReadReply:
            return await reads.answer(session.project, session.channel, request)

        with explaining_interrupt(session, f"turn {turn}", ways_of(turn)):
            await wait_directly(session, turn, read)
        print_end(session, await report_from(read, turn))


def _print_reply(session: Session, reply: EnqueueReply, *, wait: bool) -> None:
    if session.out.as_json:
        if not wait:
            session.out.document(reply)
        return
    again = ", as before" if reply.duplicate else ""
    steered = reply.status is ReplyStatus.STEERED
    stands = "reads it" if steered else f"is {reply.inbox_status}"
    session.out.line(
        f"turn {reply.agent_turn_id or reply.steered_turn_id} {stands}{again}", style="dim" if wait else ""
    )
    for turn in reply.stopped:
        session.out.line(f"turn {turn} is stopped for it", style="dim")
