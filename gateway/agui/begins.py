"""How a run of AG-UI finds its turn: a new one, that of the same run before, or the one that waits for its answers.

Nothing is kept for it in a process. A run without `resume` is a turn whose correlation is the run's id, so the same run
again is the same turn. A run with `resume` is the turn whose questions it answers, from behind the step that asked, so
the same answers again are the same run; and so is one whose last messages are outputs of the front end's own tools
(protocol §17.4).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ag_ui.core import ResumeEntry, RunAgentInput, UserMessage

from turnstile.gateway.addressed import AddressedTarget
from turnstile.gateway.agui.answers import decision_in
from turnstile.gateway.agui.run_input import (
    NOTES,
    asked_in,
    client_tools_in,
    end_user_in,
    history_in,
    instruction_in,
    instructions_in,
    notes_of,
    parent_key,
    run_key,
    thread_of,
)
from turnstile.gateway.asking import key_of
from turnstile.gateway.events.ends import look
from turnstile.gateway.events.positions import EventPart, Position
from turnstile.gateway.http.endpoints import Call
from turnstile.gateway.http.problems import Unsupported
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.openai.messages import composed
from turnstile.ledger.access.past import find_requested_turn, get_turn_request
from turnstile.ledger.people.interrupt_views import get_interrupt, list_client_calls
from turnstile.ledger.turns.views import find_conversations
from turnstile.schema import verbs
from turnstile.schema.access import Principal
from turnstile.schema.api import TurnStop
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InterruptId, instance_id
from turnstile.schema.ledger_reads import ConversationLine
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.chunk_order import step_number

_ENDED = frozenset({"expired", "withdrawn"})
_OVER = _ENDED | {"already_decided"}


@dataclass(frozen=True, slots=True)
class Thread:
    """A conversation with a target, in the channel of who asks."""

    kernel: Kernel
    call: Call[Any, RunAgentInput]
    target: AddressedTarget
    channel: ChannelId

    def agent_in(self, channel: ChannelId) -> AgentId:
        """The agent that runs the turns of this thread in a channel."""
        if not self.target.is_profile:
            return AgentId(self.target.name)
        thread = thread_of(self.call.body)
        return instance_id(self._principal.project_id, channel, self.target.name, "conversation", thread)

    async def begun(self) -> TurnView:
        """The turn of a run that answers nothing: that of the same run before, else a new one.

        Raises `Refused`: correlation_conflict, interrupts_pending; and as `Asking.ask` does.
        """
        kernel, run_input, key = self.kernel, self.call.body, run_key(self.call.body)
        thread, instruction = thread_of(run_input), instruction_in(run_input)
        if (before := await self._before(key)) is not None:
            return before
        line = await self._line()
        last = None if line is None else line.last_turn_id
        await self._follows(last)
        if last is not None:
            await self._leave(last)
        texts = composed(instructions_in(run_input))
        fields: JsonObject = {
            "conversation_id": thread,
            "instruction": instruction,
            "runtime_config": {
                **({} if texts.instructions is None else {"instructions": texts.instructions}),
                **client_tools_in(run_input),
            },
            "metadata": notes_of(run_input),
            **end_user_in(run_input),
        }
        parts = composed(history_in(run_input)).parts if line is None else []
        if parts:
            fields["context_box_id"] = await kernel.make_box(self.call, self.channel, parts, key)
        return await kernel.enqueue(self.call, self.channel, self.target, fields, key)

    async def went_on(self, outputs: Mapping[str, JsonObject]) -> tuple[TurnView, Position] | None:
        """The turn whose calls the front end has run, and the place after the step that made them.

        None if none of these calls is the front end's. One that is over already changes nothing. Raises `Refused`:
        unknown_interrupt, already_decided, and as the verb `decide` does.
        """
        project = self._principal.project_id
        rows = await self.kernel.pool.run(lambda conn: list_client_calls(conn, project, list(outputs)))
        calls = [row for row in rows if row.tool_call_id in outputs]
        if not calls:
            return None
        step = max(step_number(call.step_id) for call in calls)  # what came before was answered by an earlier run
        calls = [call for call in calls if step_number(call.step_id) == step]
        if len({call.agent_turn_id for call in calls}) > 1:
            raise Refused("invalid_response", "messages: the outputs are of calls of more than one turn")
        turn = await self.kernel.turns.described(self._principal, calls[0].agent_turn_id)
        if turn.conversation_id != thread_of(self.call.body) or turn.agent_id != self.agent_in(turn.channel_id):
            raise _unknown()
        await self._follows(turn.agent_turn_id)
        for call in calls:
            decision: JsonObject = {"interrupt_id": call.interrupt_id, **outputs[call.tool_call_id]}
            try:
                await self.kernel.turns.asking.ask(
                    self._principal, call.channel_id, verbs.DECIDE, decision, self.call.headers
                )
            except Refused as error:
                if error.code not in _ENDED:
                    raise
        return turn, Position(step, EventPart.STEP, 0, 0)

    async def answered(self, entries: list[ResumeEntry]) -> tuple[TurnView, Position]:
        """The turn whose questions these answers decide, and the place after the step that asked them.

        Raises `Refused`: unknown_interrupt, invalid_response, and as the verb `decide` does; and as `_follows` does.
        """
        views = [await self._question(entry) for entry in entries]
        turns = {view.agent_turn_id for view in views}
        if len(turns) > 1 or len({view.interrupt_id for view in views}) < len(views):
            raise Refused("invalid_response", "resume: answer each interrupt of one turn exactly once")
        turn = await self.kernel.turns.described(self._principal, turns.pop())
        if turn.conversation_id != thread_of(self.call.body) or turn.agent_id != self.agent_in(turn.channel_id):
            raise _unknown()
        await self._follows(turn.agent_turn_id)
        decisions = [decision_in(entry, view) for entry, view in zip(entries, views, strict=True)]
        for entry, view, decision in zip(entries, views, decisions, strict=True):
            await self._decide(entry, view, decision)
        return turn, Position(max(step_number(view.step_id) for view in views), EventPart.STEP, 0, 0)

    @property
    def _principal(self) -> Principal:
        return self.call.principal

    async def _before(self, key: str) -> TurnView | None:
        """The turn that this run began before; raises `Refused` (correlation_conflict) if it asked something else."""
        kernel, project = self.kernel, self._principal.project_id
        request_key = key_of(self._principal, key)
        turn = await kernel.pool.run(lambda conn: find_requested_turn(conn, project, request_key))
        if turn is None:
            return None
        view = await kernel.turns.described(self._principal, turn)
        request = await kernel.pool.run(lambda conn: get_turn_request(conn, project, turn))
        _, message = asked_in(self.call.body)
        same = request is None or _is_of(request.metadata, self.call.body, message)
        if not same or view.agent_id != self.agent_in(view.channel_id):
            raise Refused("correlation_conflict", "this runId belongs to another run: use a new runId for each run")
        return view

    async def _follows(self, last: AgentTurnId | None) -> None:
        """Raises `Unsupported` where `parentRunId` names another run than the one that began this turn.

        A run that goes on from an earlier one is a branch, which a conversation does not have.
        """
        if (key := parent_key(self.call.body)) is None:
            return
        project, request_key = self._principal.project_id, key_of(self._principal, key)
        turn = await self.kernel.pool.run(lambda conn: find_requested_turn(conn, project, request_key))
        if turn is None or turn != last:
            what = "is not a run that started a turn in this thread" if turn is None else "is not the previous run"
            hint = "threads cannot branch: omit it, or start a new thread with the messages up to that run"
            raise Unsupported(f"parentRunId: {what}; {hint}", "parentRunId")

    async def _line(self) -> ConversationLine | None:
        project, thread, channel = self._principal.project_id, thread_of(self.call.body), self.channel
        agent = self.agent_in(channel)
        run = await self.kernel.pool.run(
            lambda conn: find_conversations(conn, project, thread, agent, channel, row_limit=1)
        )
        return run[0] if run else None

    async def _leave(self, turn: AgentTurnId) -> None:
        """Stop the thread's last turn if it waits for calls of the front end: the user has said something else instead.

        Raises `Refused` (interrupts_pending) where it waits for people.
        """
        turns = self.kernel.turns
        view = await turns.described(self._principal, turn)
        seen = await look(self.kernel.pool, view)
        if seen.questions:
            named = ", ".join(i.interrupt_id for i in seen.questions[::-1][:10])
            raise Refused("interrupts_pending", f"the thread waits for a person: `resume` must answer {named}")
        if seen.client_calls:
            request = TurnStop(reason="the user said something else")
            await turns.stop_turn(self._principal, view, request, self.call.headers)

    async def _question(self, entry: ResumeEntry) -> InterruptView:
        """The question that an answer names; raises `Refused` (unknown_interrupt)."""
        principal, named = self._principal, InterruptId(entry.interrupt_id)
        channel = principal.channel_id
        view = await self.kernel.pool.run(
            lambda conn: get_interrupt(
                conn, principal.project_id, named, channel=channel, with_added=principal.sees_added
            )
        )
        if view is None:
            raise _unknown()
        return view

    async def _decide(self, entry: ResumeEntry, view: InterruptView, decision: JsonObject) -> None:
        asking = self.kernel.turns.asking
        try:
            await asking.ask(self._principal, view.channel_id, verbs.DECIDE, decision, self.call.headers)
        except Refused as error:
            if entry.status != "cancelled" or error.code not in _OVER:  # who gives up need not be the first to end it
                raise


def _is_of(metadata: JsonObject, run_input: RunAgentInput, message: UserMessage) -> bool:
    """Whether a turn with these notes was asked for by this run; retention may have removed them."""
    noted = metadata.get(NOTES)
    return noted is None or noted == {
        "thread_id": run_input.thread_id,
        "run_id": run_input.run_id,
        "message_id": message.id,
    }


def _unknown() -> Refused:
    return Refused("unknown_interrupt", "the thread has no such interrupt")
