"""Asking agents from Python, over HTTP or NATS (docs/python.md).

    async with turnstile.Client() as client:
        turn = client.ask("helper", "Say hello")
        async for piece in turn:
            print(piece, end="")
        print((await turn.result()).status)

Every request carries a correlation id, so repeating it never makes a second turn. Streamed text may be lost while NATS
is away; the result is not, because it is read from the ledger. Leaving a turn does not stop it: `Client.turn` finds it
again.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from pydantic import JsonValue

from turnstile.schema import verbs
from turnstile.schema.amounts import amount
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.budget_requests import BudgetListRequest, BudgetRequest
from turnstile.schema.budgets.views import BudgetView, ProjectLimits
from turnstile.schema.errors import BadRequest, ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InterruptId, token, uuid7
from turnstile.schema.people.interrupt_requests import InterruptListRequest, InterruptView
from turnstile.schema.people.interrupts import InterruptStatus
from turnstile.schema.states import MultitaskStrategy
from turnstile.schema.verbs import Verb
from turnstile.schema.wire.conversation_requests import ConversationStopped, ConversationStopRequest
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.schedule_requests import (
    ScheduleListRequest,
    SchedulePutRequest,
    ScheduleReply,
    ScheduleRequest,
    ScheduleTriggerRequest,
    ScheduleView,
)
from turnstile.sdk.budgets import Dollars, budget_in, find_budgets, find_limits, limit_request, raise_request
from turnstile.sdk.interrupts import Interrupt, find_interrupts, get_interrupt
from turnstile.sdk.requests import Budget, budget_of, parse_request
from turnstile.sdk.turn import Answer, Attached, Backend, Output, Request, Turn, Value, adapter_of

if TYPE_CHECKING:
    from turnstile.sdk.client import BridgeClient
    from turnstile.sdk.file_client import Files
    from turnstile.sdk.functions import ClientFunctions


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation with an agent, or with the instance of a profile that is made for it."""

    client: "Client"
    conversation_id: str
    agent_id: str | None = None
    profile_name: str | None = None

    def ask(
        self,
        instruction: str,
        *,
        output: Output[Value] | None = None,
        tools: Sequence[Callable[..., object]] = (),
        multitask_strategy: MultitaskStrategy | str = MultitaskStrategy.ENQUEUE,
        budget: Budget | None = None,
        end_user: str | None = None,
        files: Sequence[Attached] = (),
        correlation_id: str | None = None,
    ) -> Turn[Value]:
        """The next turn of it: it knows what was said, and begins when the one before is over.

        With an `output` its value is of this type; `tools` are functions of this program. A `multitask_strategy` does
        something else with the turns before it; see `Client.ask`.
        """
        return self.client.ask(
            self.agent_id,
            instruction,
            conversation=self.conversation_id,
            profile_name=self.profile_name,
            output=output,
            tools=tools,
            multitask_strategy=multitask_strategy,
            budget=budget,
            end_user=end_user,
            files=files,
            correlation_id=correlation_id,
        )

    async def stop(self, reason: str = "") -> ConversationStopped:
        """Stop its turns that are not over, the queued ones too: which will end, and how many others' go on.

        An operator stops those that others asked for, too. Raises `Refused` (`unknown_conversation`), `BadRequest` or
        `ServerUnavailable`; it may be repeated.
        """
        fields: JsonObject = {"conversation_id": self.conversation_id, "reason": reason}
        if self.agent_id is not None:
            fields["agent_id"] = self.agent_id
        request, stopped = parse_request(ConversationStopRequest, fields), list[AgentTurnId]()
        while True:
            reply = await self.client.call(verbs.CONVERSATION_STOP, request)
            stopped += reply.stopped
            if not reply.more:
                return ConversationStopped(stopped=tuple(dict.fromkeys(stopped)), others=reply.others)


class Client:
    """Asks the agents of one channel of one project. Connected inside `async with`, or after `open`.

    An address `http://…` or `https://…` is a gateway's, and needs a token, whose project it is; by default the
    environment's `TURNSTILE_TOKEN`. The channel is then by default the token's, or the gateway's own. Any other address
    is NATS's; the defaults are the project `demo` and the channel `public`. Without an address it takes
    `TURNSTILE_URL`, else `NATS_URL`, else the NATS of a `turnstile up` in this directory or one above, else port 4222
    here. `connect_timeout` is how many seconds to wait for a NATS server that is down; by default without limit.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        project: str | None = None,
        channel: str | None = None,
        token: str | None = None,
        connect_timeout: float | None = None,
    ) -> None:
        self._address = address or os.environ.get("TURNSTILE_URL") or os.environ.get("NATS_URL") or None
        self._project, self._channel = project, channel
        self._token = token
        self._connect_timeout = connect_timeout
        self._backend: Backend | None = None

    async def open(self) -> Self:
        """Connect. Over NATS it waits for a server that is down; over HTTP the first request finds out.

        Raises `BadRequest` for a name that is no token or an argument of the other way, `ConfigError` for an address
        or a token that makes no sense, if NATS refuses the login, and if no address is given and nothing runs here,
        `ServerUnavailable` after `connect_timeout`.
        """
        if self._address is not None and is_gateway(self._address):
            if self._project is not None:
                raise BadRequest("a token is of one project: leave `project` out with the address of a gateway")
            secret = self._token or os.environ.get("TURNSTILE_TOKEN")
            if not secret:
                raise BadRequest("a gateway needs a token: `token=…` or TURNSTILE_TOKEN (`turnstile token add`)")
            from turnstile.sdk.http_turns import open_http  # noqa: PLC0415 -- httpx is slow to import, and few need it

            self._backend = open_http(self._address, secret, _named(self._channel, "channel"))
        elif self._token is not None:
            raise BadRequest("a token is for a gateway: give its address, http://… or https://…, or leave `token` out")
        else:
            names = _named(self._project, "project") or "demo", _named(self._channel, "channel") or "public"
            from turnstile.sdk.nats_turns import open_nats  # noqa: PLC0415 -- as above, where turns are asked for by HTTP

            try:
                async with asyncio.timeout(self._connect_timeout):
                    self._backend = await open_nats(self._address, *names)
            except TimeoutError:
                raise ServerUnavailable(f"NATS did not answer within {amount(self._connect_timeout)} s") from None
        return self

    @classmethod
    def over(cls, backend: Backend) -> Self:
        """A client over a connection that is open, for use without `async with`; who opened it closes it."""
        client = cls()
        client._backend = backend
        return client

    async def close(self) -> None:
        """Close the connection; turns go on."""
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def bridge(self) -> "BridgeClient":
        """Over NATS: every verb by name, messages to listeners and UI actions (protocol §6).

        Raises `BadRequest` for a client over HTTP.
        """
        from turnstile.sdk.nats_turns import NatsBackend  # noqa: PLC0415 -- as above

        backend = self._opened
        if not isinstance(backend, NatsBackend):
            raise BadRequest("a client over HTTP has no verbs of the bridge: connect to NATS for them")
        return backend.bridge

    @property
    def files(self) -> "Files":
        """Files of the project: `put`, `get`, `read`, `show`, `list`, `remove`; over HTTP (docs/files.md)."""
        from turnstile.sdk.file_client import Files  # noqa: PLC0415 -- as above

        return Files(self._opened)

    def in_channel(self, channel_id: str) -> "Client":
        """Over NATS: a client of another channel, on the same connection. Raises `BadRequest` as `bridge` does."""
        from turnstile.sdk.nats_turns import NatsBackend  # noqa: PLC0415 -- as above

        bridge = self.bridge.in_channel(ChannelId(token(channel_id, "channel")))
        backend = self._opened
        return Client.over(NatsBackend(backend.conn, bridge)) if isinstance(backend, NatsBackend) else self

    def ask(
        self,
        agent_id: str | None,
        instruction: str | None = None,
        *,
        conversation: str | None = None,
        output: Output[Value] | None = None,
        output_schema: JsonObject | None = None,
        tools: Sequence[Callable[..., object]] = (),
        client_tool_seconds: float | None = None,
        result_fields: Sequence[str] | Mapping[str, str] = (),
        context_box_id: str | None = None,
        output_box_id: str | None = None,
        profile_name: str | None = None,
        model: str | None = None,
        remember: bool = False,
        metadata: JsonObject | None = None,
        multitask_strategy: MultitaskStrategy | str = MultitaskStrategy.ENQUEUE,
        budget: Budget | None = None,
        end_user: str | None = None,
        files: Sequence[Attached] = (),
        correlation_id: str | None = None,
    ) -> Turn[Value]:
        """A turn of `agent_id` that is enqueued when it is first iterated, awaited or started.

        The turns of a `conversation` follow each other and remember what was said. With a `profile_name` and None for
        the agent, an instance of the profile runs the turn: one for each conversation, else one for the request.
        With an `output`, a pydantic model or any other type, the value of its result is of this type: the model must
        give it one, and is let try again (protocol §18); `output_schema` is a JSON schema for the same, whose value is
        `{"value": …}` as stored. `tools` are functions of this program that the model may call (protocol §19): their
        type hints and docstrings are what it reads, as of `ToolService.tool`. They run while the turn is read or
        waited for, sync ones in threads, and at most `client_tool_seconds` (600) each; what one raises, the model is
        given as a failure. `result_fields` are names of fields that the deliverable must have, or names with
        descriptions. The turn reads
        the cards of a context box before the instruction, and its own go to a new box, or to `output_box_id`; with
        `remember` the instruction is kept there, too. `metadata` is yours alone: no model sees it.
        `multitask_strategy` says what becomes of your turns of the same conversation that are not over: `reject`
        refuses the new one (`turn_in_progress`), `interrupt` and `rollback` stop them, `steer` sends the newest the
        instruction: then the turn is that one. Over NATS these need `TURNSTILE_PRINCIPAL` (docs/people.md). A `budget`
        bounds what the turn and all below it use, such as `{"max_tokens": 50_000, "max_cost_usd": 0.5}`; by default the
        profile's. `end_user` is the person for whom you ask, by your own name for them: all turns below are theirs,
        too, and go with them (docs/deletion.md). `files` are paths, bytes or ids of files, which belong to
        the instruction (docs/files.md); over NATS ids alone. With a `correlation_id` of yours, the same request made
        again answers the same
        turn, and runs the calls of `tools` that are open. Raises `BadRequest`, or `ConfigError` for a function that
        cannot be a tool.
        """
        described = result_fields if isinstance(result_fields, Mapping) else dict.fromkeys(result_fields, "")
        if output is not None and output_schema is not None:
            raise BadRequest("either output or output_schema: each says what the answer is")
        adapter = None if output is None else adapter_of(output)
        schema = output_schema if adapter is None else adapter.json_schema()
        config: JsonObject = {**({"model": model} if model else {}), **({"remember": True} if remember else {})}
        config |= {} if schema is None else {"output_schema": schema}
        functions = _functions(tools)
        config |= {} if functions is None else {"client_tools": functions.offered()}
        config |= {} if client_tool_seconds is None else {"client_tool_seconds": client_tool_seconds}
        fields: dict[str, JsonValue] = {
            "agent_id": agent_id,
            "instruction": instruction,
            "conversation_id": conversation,
            "context_box_id": context_box_id,
            "output_box_id": output_box_id,
            "profile_name": profile_name,
            "correlation_id": correlation_id or uuid7(),
            "runtime_config": config or None,
            "metadata": metadata,
            "budget": budget_of(budget),
            "end_user": end_user,
            "files": [file for file in files if isinstance(file, str)] or None,
            "multitask_strategy": None if multitask_strategy == MultitaskStrategy.ENQUEUE else multitask_strategy,
            "result_fields": [{"name": name, "description": text} for name, text in described.items()] or None,
        }
        request = parse_request(EnqueueRequest, {name: value for name, value in fields.items() if value is not None})
        turn = cast("Turn[Value]", self.ask_for(request))
        turn.output, turn.functions = adapter, functions
        if any(not isinstance(file, str) for file in files):
            turn.attach(files)
        return turn

    def ask_for(self, request: EnqueueRequest) -> Turn:
        """The turn of a request that is made already (protocol §6); see `ask`."""
        return self._opened.ask(request)

    def conversation(
        self, conversation_id: str, *, agent_id: str | None = None, profile_name: str | None = None
    ) -> Conversation:
        """A conversation with an agent or with a profile's instance; it begins with its first turn."""
        return Conversation(self, conversation_id, agent_id, profile_name)

    async def call(self, verb: Verb[Request, Answer], request: Request) -> Answer:
        """The accepted reply to a verb that is declared in `turnstile.schema.verbs`, over NATS or HTTP.

        Raises `Refused` with the code of the refusal, `BadRequest` for a verb that a gateway has not, or
        `ServerUnavailable`.
        """
        return await self._opened.call(verb, request)

    async def turn(self, agent_turn_id: str, *, agent_id: str | None = None) -> Turn:
        """A turn that was asked for earlier, by anybody; raises `Refused` (`unknown_turn`) if the project has none.

        With the id of its agent a turn of this channel is not looked up first: its methods raise that then.
        """
        if agent_id is not None:
            return self._opened.known(AgentId(agent_id), AgentTurnId(agent_turn_id))
        return await self._opened.find(AgentTurnId(agent_turn_id))

    async def interrupts(
        self,
        *,
        status: InterruptStatus | str | None = InterruptStatus.OPEN,
        agent_id: str | None = None,
        agent_turn_id: str | None = None,
        limit: int = 100,
    ) -> list[Interrupt]:
        """What turns ask people in this channel, the newest first, each with its call; by default what is open.

        Raises `BadRequest` or `ServerUnavailable`.
        """
        named: JsonObject = {"status": status, "agent_id": agent_id, "agent_turn_id": agent_turn_id}
        return await find_interrupts(self._opened, parse_request(InterruptListRequest, named), limit)

    async def interrupt(self, interrupt_id: str) -> Interrupt:
        """One of them; raises `Refused` (`unknown_interrupt`) or `ServerUnavailable`."""
        return await get_interrupt(self._opened, InterruptId(interrupt_id))

    def interrupt_of(self, view: InterruptView) -> Interrupt:
        """One that was read otherwise."""
        return Interrupt(self._opened, view)

    async def budgets(
        self, *, kind: str | None = None, status: str | None = None, limit: int = 100
    ) -> list[BudgetView]:
        """What turns of this channel and the project may spend, and have spent, the newest first.

        Of one `kind` (`turn`, `day`, `month`) or `status` (`open`, `ended`, `closed`) alone, if that is given.
        Raises `BadRequest` or `ServerUnavailable`.
        """
        request = parse_request(BudgetListRequest, {"kind": kind, "status": status})
        return await find_budgets(self._opened, request, limit)

    async def budget(self, budget_id: str) -> BudgetView:
        """A budget: a turn's id, `day` or `month` of the project's now, or such as `2026-11-23` or `2026-11`.

        Raises `Refused` (`unknown_budget`) or `ServerUnavailable`.
        """
        request = parse_request(BudgetRequest, {"budget_id": budget_id})
        return budget_in(await self._opened.call(verbs.BUDGET_GET, request))

    async def raise_budget(
        self,
        budget: str | BudgetView,
        *,
        tokens: int | None = None,
        cost_usd: Dollars | None = None,
        turns: int | None = None,
        correlation_id: str | None = None,
    ) -> BudgetView:
        """Give a budget so much more, or with a minus take back what is free; operators alone may.

        The same again with the same `correlation_id` changes nothing, so that it may be repeated.
        A turn's grant takes it from the budget that it came from. One of another channel is given as it was read.
        Returns the budget as it is then. Raises `Refused` (`forbidden`, `unknown_budget`, `budget_closed`,
        `budget_unlimited`, `budget_in_use`, `budget_exceeded`), `BadRequest` or `ServerUnavailable`: then it may have
        been done.
        """
        named, channel = (budget, None) if isinstance(budget, str) else (budget.budget_id, budget.channel_id)
        request = raise_request(named, tokens, cost_usd, turns, correlation_id)
        return budget_in(await self._opened.call(verbs.RAISE_BUDGET, request, channel))

    async def limits(self) -> list[ProjectLimits]:
        """What the project may spend in a day or month; none if nothing limits it."""
        return await find_limits(self._opened)

    async def limit_project(
        self, period: str, *, tokens: int | None = None, cost_usd: Dollars | None = None, turns: int | None = None
    ) -> BudgetView:
        """Say what the project's turns may spend together in each `day` or `month` (UTC); operators alone may.

        It holds at once, and takes the place of what was said before: without any number nothing limits the project
        any more. Returns the budget of this day or month. Raises `Refused` (`forbidden`), `BadRequest` or
        `ServerUnavailable`.
        """
        request = limit_request(period, tokens, cost_usd, turns)
        return budget_in(await self._opened.call(verbs.LIMIT_PROJECT, request))

    async def put_schedule(self, schedule_id: str, instruction: str, **settings: JsonValue) -> ScheduleView:
        """Ask for turns at times; the same id again replaces what was put (docs/schedules.md).

        `settings` are those of `SchedulePutRequest`: `agent_id` or `profile_name`; `cron`, `every_seconds` or `at`.
        Raises `BadRequest`, `Refused` (`not_yours`, `unknown_agent`, `never_fires`, …) or `ServerUnavailable`.
        """
        fields: JsonObject = {"schedule_id": schedule_id, "instruction": instruction, **settings}
        reply = await self._opened.call(verbs.SCHEDULE_PUT, parse_request(SchedulePutRequest, fields))
        return _schedule_in(reply)

    async def schedules(self) -> list[ScheduleView]:
        """The schedules of this channel by their ids, each with its last firing."""
        found: list[ScheduleView] = []
        after: str | None = None
        while True:
            page = await self._opened.call(verbs.SCHEDULE_LIST, ScheduleListRequest(after=after))
            found += page.schedules
            if (after := page.next) is None:
                return found

    async def schedule(self, schedule_id: str) -> ScheduleView:
        """A schedule with its next times and last firings; raises `Refused` (`unknown_schedule`)."""
        return await self._of_schedule(verbs.SCHEDULE_GET, schedule_id)

    async def pause_schedule(self, schedule_id: str) -> ScheduleView:
        """Let it fire no more until it is resumed; raises `Refused` (`unknown_schedule`, `not_yours`)."""
        return await self._of_schedule(verbs.SCHEDULE_PAUSE, schedule_id)

    async def resume_schedule(self, schedule_id: str) -> ScheduleView:
        """Let it fire from its next time on; raises `Refused` (`unknown_schedule`, `not_yours`, `never_fires`)."""
        return await self._of_schedule(verbs.SCHEDULE_RESUME, schedule_id)

    async def remove_schedule(self, schedule_id: str) -> ScheduleView:
        """Remove it with its firings; its turns stay. Raises `Refused` (`unknown_schedule`, `not_yours`)."""
        return await self._of_schedule(verbs.SCHEDULE_REMOVE, schedule_id)

    async def trigger_schedule(self, schedule_id: str, *, correlation_id: str | None = None) -> AgentTurnId:
        """Enqueue a turn of it now; returns the turn's id, the same for the same `correlation_id`.

        Raises `Refused` (`unknown_schedule`, `not_yours`) and as an enqueue does.
        """
        fields: JsonObject = {"schedule_id": schedule_id, "correlation_id": correlation_id or uuid7()}
        reply = await self._opened.call(verbs.SCHEDULE_TRIGGER, parse_request(ScheduleTriggerRequest, fields))
        if reply.agent_turn_id is None:
            raise ServerUnavailable("the bridge accepted the request and named no turn")
        return reply.agent_turn_id

    async def _of_schedule(self, verb: Verb[ScheduleRequest, ScheduleReply], schedule_id: str) -> ScheduleView:
        request = parse_request(ScheduleRequest, {"schedule_id": schedule_id})
        return _schedule_in(await self._opened.call(verb, request))

    @property
    def _opened(self) -> Backend:
        if self._backend is None:
            raise BadRequest("the client is not connected: use it inside `async with`")
        return self._backend


def _functions(tools: Sequence[Callable[..., object]]) -> "ClientFunctions | None":
    if not tools:
        return None
    from turnstile.sdk.functions import ClientFunctions  # noqa: PLC0415 -- few programs bring functions

    return ClientFunctions(tools)


def _schedule_in(reply: ScheduleReply) -> ScheduleView:
    if reply.schedule is None:
        raise ServerUnavailable("the bridge accepted the request and showed no schedule")
    return reply.schedule


def connect(
    address: str | None = None, *, project: str | None = None, channel: str | None = None, token: str | None = None
) -> Client:
    """A `Client`, by the name that it had when there was NATS alone."""
    return Client(address, project=project, channel=channel, token=token)


def is_gateway(address: str) -> bool:
    """Whether this is the address of a gateway, and not of NATS."""
    return address.lower().startswith(("http://", "https://"))


def _named(name: str | None, what: str) -> str | None:
    return None if name is None else token(name, what)
