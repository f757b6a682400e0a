"""A service that runs the turns of one worker target as tasks in its own process, without Temporal (protocol §6, §8).

It claims due rows, begins each turn, calls a handler, and finishes the turn with the handler's deliverable. Ledger
transitions, events, doorbells and safety net are those of a model's turns. Each turn has one outcome; after a crash the
handler may run again for the same turn. Only one process may serve a target: the caller holds the target's lock, so
this process takes over whatever an earlier process left claimed or begun.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from pydantic import JsonValue

from turnstile.bridge.inbox.claims import Claims
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.safety.rules import ROW_LIMIT, LedgerRules, SafetyRule, WatchdogTimes
from turnstile.ledger.operations.recovery import RunTransition, list_in_hand
from turnstile.ledger.operations.sweep import release_stale_claims
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.lease import Claim, LiveTurn
from turnstile.ledger.turns.steps import begin_step
from turnstile.ledger.turns.turn_publisher import TurnPublisher, end_stopped
from turnstile.rules.tool_specs import code_delivers, wanted_fields
from turnstile.rules.turn_config import output_schema_of
from turnstile.rules.turn_ends import STOPPED, Ending, fallback_ending
from turnstile.rules.turn_step import BegunStep, StepRecord
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.handler_run import run_as_task
from turnstile.runtime.log_context import about
from turnstile.runtime.ports import Publisher
from turnstile.schema.amounts import amount
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardType, JsonContent, Role, TextContent, content_of, make_card
from turnstile.schema.errors import Refused, ServerUnavailable, StaleTurn
from turnstile.schema.ids import AgentTurnId, step_id, turn_card_id
from turnstile.schema.json_reading import storable, storable_object
from turnstile.schema.message_types import Purpose, asks_model
from turnstile.schema.states import HeadStatus, StepPhase, StepStatus, TurnStatus
from turnstile.schema.step_metadata import EndMetadata
from turnstile.schema.turns import TurnRef

log = logging.getLogger(__name__)
_CANCEL_SECONDS = 5.0
EXHAUSTED, LATE, FAILED = "step_attempts_exhausted", "service_timeout", "service_error"


@dataclass(frozen=True, slots=True)
class ServiceTurn:
    """The turn that a handler works on."""

    turn: TurnRef
    """Its ids: project, channel, agent, turn, epoch, boxes, trace."""
    instruction: str
    """The text of its `task.instruction` cards."""
    context: tuple[Card, ...]
    """All cards of its context box."""
    memory: tuple[Card, ...]
    """All cards of its output box, including those of the agent's earlier turns in that box."""
    attempt: int
    """1 at first, more after a crash: then an earlier attempt may have had effects. Key effects by `agent_turn_id`."""


Handler = Callable[[ServiceTurn], Awaitable[str | JsonObject]]
"""Returns the deliverable, text or a JSON object. Raises `Refused(code, message)` to end the turn as failed with that
code; any other error ends it as `service_error`. It is cancelled when the turn is stopped or the target is lost."""


class InboxService(Claims):
    """Runs each turn of one worker target in a task. Holds these tasks and no other state of a turn."""

    def __init__(
        self,
        pool: Pool,
        publisher: Publisher,
        worker_target: str,
        handler: Handler,
        *,
        concurrency: int = 1,
        deadline_seconds: float = 300.0,
        max_attempts: int = 5,
    ) -> None:
        super().__init__(pool, publisher, ServedTargets([worker_target]))
        self._handler = handler
        self._slots = asyncio.Semaphore(concurrency)
        self._deadline = deadline_seconds
        self._max_attempts = max_attempts
        self._cache = BoxCache(0)
        self._tasks: dict[AgentTurnId, asyncio.Task[None]] = {}
        self._stopped: set[AgentTurnId] = set()

    def rules(self, times: WatchdogTimes) -> LedgerRules:
        """The safety net's rules for this target, for a `Watchdog` that runs beside this service.

        A claimed turn may wait here for a free slot; it is not late then. A claim is lost only if the reply to the
        claim statement was.
        """
        begun = SafetyRule("service", self._begun_before, self._take_up)
        times = replace(times, dispatched_retry=times.inbox_processing_timeout)
        return LedgerRules(self._pool, self, self._publisher, self._served, times, more=[begun])

    async def take_over(self) -> None:
        """Release the rows that an earlier process had claimed, and claim them here."""
        targets, limit = self._served.now(), ROW_LIMIT
        while agents := await self._pool.run(
            lambda conn: release_stale_claims(conn, targets, older_seconds=0, row_limit=limit)
        ):
            await self.claim(agents, "taken over")

    async def close(self, grace_seconds: float) -> None:
        """Wait at most `grace_seconds` for handlers, then cancel them; the next process runs their turns again."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=max(grace_seconds, 0.001))
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=_CANCEL_SECONDS)

    async def start_claimed(self, claim: Claim) -> None:
        """Start the turn's task; its handler runs when a slot is free."""
        self._start(claim.turn())

    async def ring(self, claims: list[Claim]) -> None:
        """End the turn if one of the rows is a stop; its turns make no calls, so no other signal matters."""
        turn = claims[0].turn()
        if not any(claim.purpose is Purpose.STOP for claim in claims):
            return
        if (task := self._tasks.get(turn.agent_turn_id)) is None:
            await end_stopped(self._pool, self._publisher, turn)
        else:
            self._stopped.add(turn.agent_turn_id)
            task.cancel()

    async def _begun_before(self, run: RunTransition) -> Sequence[LiveTurn]:
        """Turns that have begun and have no task here: an earlier process began them, or a server was lost."""
        turns = [turn async for turn in list_in_hand(run, self._served.now(), older_seconds=0)]
        return [turn for turn in turns if turn.status is HeadStatus.RUNNING and turn.agent_turn_id not in self._tasks]

    async def _take_up(self, turns: Sequence[LiveTurn]) -> int:
        for turn in turns:
            self._start(turn)
        return len(turns)

    def _start(self, turn: TurnRef) -> None:
        if turn.agent_turn_id not in self._tasks:
            self._tasks[turn.agent_turn_id] = asyncio.create_task(self._live(turn))

    async def _live(self, turn: TurnRef) -> None:
        with about(turn):
            try:
                async with self._slots:
                    await self._run(turn)
            except asyncio.CancelledError:
                if turn.agent_turn_id in self._stopped:
                    await self._end_stopped(turn)
            except StaleTurn:
                log.info("turn %s: another process has ended it", turn.agent_turn_id)
            except ServerUnavailable as error:
                log.warning("turn %s: left to the safety net: %s", turn.agent_turn_id, error)
            except Exception:  # a turn that fails must not end the others
                log.exception("turn %s: left to the safety net", turn.agent_turn_id)
            finally:
                self._tasks.pop(turn.agent_turn_id, None)
                self._stopped.discard(turn.agent_turn_id)

    async def _end_stopped(self, turn: TurnRef) -> None:
        try:
            await end_stopped(self._pool, self._publisher, turn)
        except ServerUnavailable as error:
            log.warning("turn %s: its stop is left to the safety net: %s", turn.agent_turn_id, error)

    async def _run(self, turn: TurnRef) -> None:
        begun = await self._pool.run(lambda conn: begin_step(conn, turn, 0, self._cache))
        hit(Fault.STEP_BEGUN)
        turn_events = TurnPublisher(turn, begun.head.context_headers, publisher=self._publisher)
        number = begun.head.step_count + 1
        step = step_id(turn.agent_turn_id, number)
        consumed = [turn_events.consumed()] if begun.head.step_attempt == 1 else []
        await turn_events.publish(
            turn_events.state(HeadStatus.RUNNING, begun.head.updated_at),
            *consumed,
            turn_events.step(step, StepPhase.STARTED, {}),
        )
        card, ending = await self._work(turn, begun)
        metadata = EndMetadata(new_card_ids=(card.card_id,), error_code=ending.error_code)
        status = StepStatus.FAILED if ending.status is TurnStatus.FAILED else StepStatus.COMPLETED
        record = StepRecord(number, metadata, [card], [], begun.head.updated_at, status)
        # the handler's result cannot be computed a second time
        await turn_events.finish(self._pool, ending, record=record)

    async def _work(self, turn: TurnRef, begun: BegunStep) -> tuple[Card, Ending]:
        """Run the handler; returns its deliverable, or a failure card, and the ending of the turn."""
        if begun.head.step_attempt > self._max_attempts:
            return _failure(turn, begun, EXHAUSTED, f"the turn was begun {begun.head.step_attempt} times")
        if not asks_model(begun.head.message_type):
            return _failure(turn, begun, FAILED, "a service calls no tools")
        service_turn = ServiceTurn(turn, _instruction(begun), begun.context, begun.output, begun.head.step_attempt)
        try:
            answered = await run_as_task(
                self._handler(service_turn), self._deadline, f"handler of turn {turn.agent_turn_id}"
            )
        except TimeoutError:
            return _failure(turn, begun, LATE, f"no answer in {amount(self._deadline)} s")
        if answered.cancelled():
            return _failure(turn, begun, FAILED, "CancelledError")
        try:
            given = cast("str | JsonObject", answered.result())
            value, flaw = code_delivers(given, output_schema_of(begun), wanted_fields(begun.context).fields)
            card = _deliverable(turn, begun.head.step_count + 1, value, partial=flaw is not None)
        except Refused as refused:
            return _failure(turn, begun, storable(refused.code)[:100], storable(str(refused))[:500])
        except Exception as error:  # any exception of a handler ends its turn
            log.exception("turn %s: its handler failed", turn.agent_turn_id)
            return _failure(turn, begun, FAILED, type(error).__name__)
        status = TurnStatus.SUCCESS if flaw is None else TurnStatus.PARTIAL
        return card, Ending(status, card.card_id, flaw, stats={"steps": begun.head.step_count + 1})


def _deliverable(turn: TurnRef, step: int, value: JsonValue, *, partial: bool) -> Card:
    content = (
        TextContent(text=storable(value))
        if isinstance(value, str)
        else JsonContent(data=storable_object(cast("JsonObject", value)))
    )
    return make_card(
        turn_card_id(turn.agent_turn_id, "deliverable"),
        CardType.DELIVERABLE,
        Role.ASSISTANT,
        content,
        author=turn.agent_id,
        turn=turn.agent_turn_id,
        step=step_id(turn.agent_turn_id, step),
        trace=turn.trace_id,
        partial=partial or None,
    )


def _failure(turn: TurnRef, begun: BegunStep, code: str, message: str) -> tuple[Card, Ending]:
    stats: JsonObject = {"steps": begun.head.step_count + 1}
    return fallback_ending(turn, begun.output, TurnStatus.FAILED, code, message, stats)


def _instruction(begun: BegunStep) -> str:
    """The text of the instruction cards; an instruction that is not text is left for the handler to read."""
    contents = [content_of(card) for card in begun.context if card.type == CardType.INSTRUCTION]
    return "\n".join(content.text for content in contents if isinstance(content, TextContent))


__all__ = ["EXHAUSTED", "FAILED", "LATE", "STOPPED", "Handler", "InboxService", "ServiceTurn"]
