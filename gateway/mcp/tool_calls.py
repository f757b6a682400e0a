"""`tools/call`: one turn for each call that asks an agent, and handles of turns (protocol §17.2).

A call waits for its turn at most as long as it says, then its answer is the turn's handle; so it is when the gateway
stops. A turn that waits for a person is asked about where the client can ask one and the token may decide. What comes
back names a turn and questions, all looked up under the token; the bridge's verb `decide` says what counts.
"""

import asyncio
import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    TextContent,
)

from turnstile.gateway.addressed import GONE, AddressedTarget, look_up
from turnstile.gateway.events.ends import Ends, Seen, look
from turnstile.gateway.http.endpoints import Call, parsed
from turnstile.gateway.http.problems import problem_of
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.mcp.asker import Asker
from turnstile.gateway.mcp.call_arguments import Ask, TurnGet, TurnStopArguments
from turnstile.gateway.mcp.elicited import (
    MOST_ASKED,
    RequestState,
    decision_of,
    may_be_asked,
    question_form,
    read_state,
    reply_name,
    responses_in,
    state_of,
)
from turnstile.gateway.mcp.tool_names import LONGEST, TURN_GET, TURN_STOP, named_by, tool_name
from turnstile.gateway.outputs import output_of, typed_value
from turnstile.ledger.people.interrupt_views import get_interrupt
from turnstile.ledger.pool import Pool
from turnstile.rules.tool_specs import OUTPUT_INVALID
from turnstile.schema import verbs
from turnstile.schema.access import Principal, Right, TokenId
from turnstile.schema.amounts import amount
from turnstile.schema.api import Output, TurnStop
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import AgentTurnId, InterruptId
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import Interrupt
from turnstile.schema.states import TurnStatus
from turnstile.schema.verbs import LONGEST_WAIT
from turnstile.schema.wire import subjects
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.turn import TurnResult

_STOP_SECONDS: Final = 10.0
"""How long a stop waits for the turn's end."""
_TOO_LATE: Final = frozenset({"already_decided", "expired", "withdrawn"})
Answer = CallToolResult | InputRequiredResult


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The tools of one gateway."""

    kernel: Kernel
    asking: dict[tuple[TokenId, str], Asker] = field(default_factory=dict[tuple[TokenId, str], Asker])
    """Who waits here for a person's reply by this name; woken if there will be none, as far as that is known here."""

    async def call(self, asker: Asker, params: CallToolRequestParams) -> Answer:
        """Call a tool; what is refused is an error of the tool. Raises `MCPError` for a tool that is none."""
        try:
            with self.kernel.access.streaming(asker.principal):
                match params.name:
                    case name if name == TURN_GET:
                        return await self._get(asker, params)
                    case name if name == TURN_STOP:
                        return await self._stop(asker, params)
                    case _:
                        return await self._ask(asker, params)
        except TurnstileError as error:
            return refused_result(error)
        finally:
            for name in [name for name, waiting in self.asking.items() if waiting is asker]:
                del self.asking[name]

    def dismiss(self, principal: Principal, name: str) -> None:
        """A person has been asked by this name, and will not answer."""
        if (asker := self.asking.get((principal.token_id, name))) is not None:
            asker.dismissed.set()

    async def decide(
        self, call: Call[Any, Any], interrupt: InterruptId, digest: str | None, answer: ElicitResult
    ) -> bool:
        """Decide a question as a person answered it; returns whether they did. Raises `TurnstileError`.

        Where somebody else was first, or the question is closed, there is nothing to decide any more.
        """
        principal, pool, asking = call.principal, self.kernel.pool, self.kernel.turns.asking
        self.kernel.access.check(principal, Right.DECIDE)
        project, channel = principal.project_id, principal.channel_id
        view = await pool.run(
            lambda conn: get_interrupt(conn, project, interrupt, channel=channel, with_added=principal.sees_added)
        )
        if view is None:
            raise Refused("unknown_interrupt", "the project has no such interrupt")
        payload = decision_of(view, digest, answer)
        if payload is None:
            return False
        try:
            await asking.ask(principal, view.channel_id, verbs.DECIDE, payload, call.headers)
        except Refused as error:
            if error.code not in _TOO_LATE:
                raise
        return True

    async def _get(self, asker: Asker, params: CallToolRequestParams) -> Answer:
        arguments = parsed(TurnGet, params.arguments or {}, "arguments")
        view = await self.kernel.turns.described(asker.principal, AgentTurnId(arguments.turn_id))
        state = None if params.request_state is None else read_state(params.request_state)
        return await self._answer(asker, view, arguments.wait_seconds, params, state, is_patient=True)

    async def _stop(self, asker: Asker, params: CallToolRequestParams) -> Answer:
        self.kernel.access.check(asker.principal, Right.ASK)
        arguments = parsed(TurnStopArguments, params.arguments or {}, "arguments")
        turns, principal = self.kernel.turns, asker.principal
        view = await turns.described(principal, AgentTurnId(arguments.turn_id))
        await turns.stop_turn(principal, view, TurnStop(reason=arguments.reason), asker.call.headers)
        withdrawn = {question.interrupt_id for question in (await look(self.kernel.pool, view)).questions}
        return await self._watched(asker, view, _STOP_SECONDS, withdrawn, is_patient=True)

    async def _ask(self, asker: Asker, params: CallToolRequestParams) -> Answer:
        turns, principal = self.kernel.turns, asker.principal
        self.kernel.access.check(principal, Right.ASK)
        target = await self._target(principal, params.name)
        ask = parsed(Ask, params.arguments or {}, "arguments")
        key, is_chosen = asker.key(params.meta)
        state = None if params.request_state is None else read_state(params.request_state)
        if state is None:
            enqueued = await self._enqueued(asker, target, ask, key)
            turn, view = (
                enqueued.agent_turn_id,
                enqueued.model_copy(update={"steps": 0}),
            )  # what it did was not reported yet
        else:
            turn, view = AgentTurnId(state.turn), None
        try:
            view = view or await turns.described(principal, turn)
            answer = await self._answer(asker, view, ask.wait_seconds, params, state, is_patient=False)
        except ServerUnavailable:  # the turn is there, whatever can be seen of it now
            return going_on(turn)
        if asker.gone.is_set() and asker.is_stateless and not is_chosen:
            await turns.abandon(principal, view)  # nobody can find it again
        return answer

    async def _target(self, principal: Principal, tool: str) -> AddressedTarget:
        """Whom a tool asks; raises `MCPError`."""
        named = named_by(tool)
        target = None if named is None else await look_up(self.kernel.pool, principal.project_id, named)
        if target is None or tool_name(target.named) != tool:
            raise _unknown(tool)
        return target

    async def _enqueued(self, asker: Asker, target: AddressedTarget, ask: Ask, key: str | None) -> TurnView:
        """The one turn of this call."""
        fields: JsonObject = ask.model_dump(mode="json", exclude_none=True, exclude={"wait_seconds"})
        channel = self.kernel.turns.asking.channel(asker.principal, None)
        try:
            return await self.kernel.enqueue(asker.call, channel, target, fields, key)
        except Refused as error:
            if error.code in GONE:
                raise _unknown(target.named) from None
            raise

    async def _answer(
        self,
        asker: Asker,
        view: TurnView,
        seconds: float,
        params: CallToolRequestParams,
        state: RequestState | None,
        *,
        is_patient: bool,
    ) -> Answer:
        """What a turn comes to, after the decisions that the client brings have been made."""
        dismissed: set[InterruptId] = set()
        answers = responses_in(params.input_responses)
        try:
            for name, digest in () if state is None else state.asked.items():
                if name in answers and not await self.decide(asker.call, InterruptId(name), digest, answers[name]):
                    dismissed.add(InterruptId(name))
        except TurnstileError as error:
            return refused_result(error, view)
        return await self._watched(asker, view, seconds, dismissed, is_patient=is_patient)

    async def _watched(
        self, asker: Asker, view: TurnView, seconds: float, known: set[InterruptId], *, is_patient: bool
    ) -> Answer:
        """The turn's end, its next question to the client's person, or its handle when the time is over.

        `known` are questions that are not asked here again; one that cannot be asked here ends the wait, unless it
        `is_patient`.
        """
        loop, closing = asyncio.get_running_loop(), self.kernel.streaming.closing
        until, reports, is_asked = loop.time() + seconds, 0, False
        before, seen = Seen(view), await look(self.kernel.pool, view)
        while True:
            for message in news(before, seen):
                reports += 1
                await asker.progress(reports, message=message)
            if seen.is_over:
                break
            new = [q for q in seen.questions if q.interrupt_id not in known]
            known |= {q.interrupt_id for q in new}
            if forms := await self._forms(asker, new):
                if asker.is_stateless:
                    return _input_required(view, forms)
                for question, form in forms:
                    self.asking[asker.principal.token_id, reply_name(question)] = asker
                    asker.ask_person(reply_name(question), form)
                is_asked, until = True, max(until, loop.time() + LONGEST_WAIT)
            waits_in_vain = bool(seen.questions) and not is_patient and not is_asked
            left = until - loop.time()
            if waits_in_vain or left <= 0 or any(event.is_set() for event in (*asker.leaving, closing)):
                return going_on(view.agent_turn_id, [q.interrupt_id for q in seen.questions])
            before, seen = seen, await self._next(asker, seen, known, left)
        card = seen.view.deliverable_card_id
        return ended(seen.view, None if card is None else await output_of(self.kernel.pool, seen.view, card))

    async def _forms(
        self, asker: Asker, questions: Sequence[Interrupt]
    ) -> list[tuple[InterruptView, ElicitRequestFormParams]]:
        """The questions that the client's person can be asked."""
        principal, pool = asker.principal, self.kernel.pool
        forms: list[tuple[InterruptView, ElicitRequestFormParams]] = []
        for question in questions if asker.asks_people else ():
            if len(forms) < MOST_ASKED and may_be_asked(question, principal):
                named = question.interrupt_id
                view = await pool.run(
                    lambda conn, named=named: get_interrupt(
                        conn, principal.project_id, named, with_added=principal.sees_added
                    )
                )
                if view is not None and (form := question_form(view)) is not None:
                    forms.append((view, form))
        return forms

    async def _next(self, asker: Asker, seen: Seen, known: Collection[InterruptId], seconds: float) -> Seen:
        """The turn after its next change, when the time is over, the client has gone or the gateway stops."""
        pool, ends = self.kernel.pool, self.kernel.feeds.ends
        changing = asyncio.create_task(next_change(pool, ends, seen, known))
        leaving = [asyncio.create_task(event.wait()) for event in (*asker.leaving, self.kernel.streaming.closing)]
        tasks: set[asyncio.Task[Any]] = {changing, *leaving}
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            is_changed = changing.done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return changing.result() if is_changed else await look(pool, seen.view)


def _input_required(view: TurnView, forms: Sequence[tuple[InterruptView, ElicitRequestFormParams]]) -> Answer:
    questions = [question for question, _ in forms]
    requests: dict[str, InputRequest] = {q.interrupt_id: ElicitRequest(params=form) for q, form in forms}
    return InputRequiredResult(input_requests=requests, request_state=state_of(view.agent_turn_id, questions).text())


def _unknown(tool: str) -> MCPError:
    name = tool if len(tool) <= LONGEST and tool.isprintable() else "…"
    return MCPError(INVALID_PARAMS, f"Unknown tool: {name}")


_DELIVERED = frozenset({TurnStatus.SUCCESS, TurnStatus.PARTIAL})
_ERROR_LENGTH = 2000


def going_on(turn: AgentTurnId, questions: Iterable[InterruptId] = ()) -> CallToolResult:
    """A turn that is not over: its handle, and the open questions to people that it waits for."""
    interrupts = sorted(questions)
    answer: JsonObject = {"turn_id": turn, "status": "waiting_for_person" if interrupts else "running"}
    if interrupts:
        answer["interrupt_ids"] = list(interrupts)
    return _result(answer)


def ended(view: TurnView, output: Output | None) -> CallToolResult:
    """A turn that is over."""
    status = TurnStatus(view.status)
    answer: JsonObject = {"turn_id": view.agent_turn_id, "status": status}
    if output is not None:
        value = typed_value(output.data) if output.text is None else output.text
        fields = TurnResult(agent_turn_id=view.agent_turn_id, status=status, value=value).fields
        answer |= {"fields": fields} if fields else {"value": value}
        if output.partial:
            answer["partial"] = True
    if view.error_code is not None:
        answer |= {"error_code": view.error_code, "error": (view.error or "")[:_ERROR_LENGTH]}
    has_answer = status in _DELIVERED and view.error_code != OUTPUT_INVALID
    return _result(answer, output.text if has_answer and output is not None else None, is_error=not has_answer)


def refused_result(error: TurnstileError, view: TurnView | None = None) -> CallToolResult:
    """Why nothing was done; of a turn, why a decision about it was not taken."""
    problem = problem_of(error)
    answer: JsonObject = {"status": "refused", "error_code": problem.code, "error": problem.detail}
    if problem.retry_after_seconds is not None:
        answer["error"] = f"{problem.detail} (again in {amount(problem.retry_after_seconds)} s)"
    if view is not None:
        answer["turn_id"] = view.agent_turn_id
    return _result(answer, is_error=True)


def _result(answer: JsonObject, text: str | None = None, *, is_error: bool = False) -> CallToolResult:
    shown_text = json.dumps(answer, ensure_ascii=False) if text is None else text
    return CallToolResult(content=[TextContent(text=shown_text)], structured_content=answer, is_error=is_error)


_LOOK_SECONDS = 2.0


async def next_change(pool: Pool, ends: Ends, before: Seen, known: Collection[InterruptId]) -> Seen:
    """The turn once it is over, has committed another step, or asks what is not among `known`."""
    view = before.view
    subject = subjects.agent_events_filter(view.project_id, view.channel_id, view.agent_id)
    async with ends.hearing(subject, view.agent_turn_id) as hint:
        while True:
            hint.clear()
            with contextlib.suppress(ServerUnavailable):  # it goes on when the ledger is there again
                seen = await look(pool, view)
                new = any(question.interrupt_id not in known for question in seen.questions)
                if seen.is_over or new or seen.view.steps > view.steps:
                    return seen
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hint.wait(), _LOOK_SECONDS)


def news(before: Seen, seen: Seen) -> Iterator[str]:
    """What happened between two looks, in order, for people: each step, then that the turn waits or its end."""
    for step in range(before.view.steps + 1, seen.view.steps + 1):
        yield f"step {step} is done"
    if seen.is_over:
        yield f"the turn ended: {seen.view.status}"
    elif len(seen.questions) > len(before.questions):
        yield "the turn waits for a person"
