"""A stateful service of its own: it consumes the inbox of one worker target without workflows (protocol §6, §8).

It claims what is due, begins each turn, lets a handler do the work, and finishes with its deliverable; the same gates
as for a model's turns, the same events, doorbells and safety net. Each turn has one outcome; the handler may run more
than once for it, after a crash. Only one process may do this for a target: its caller holds the target's lock, which is
why whatever an earlier process left claimed or begun is this one's. It needs no Temporal.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import cast

from turnstile.activities.pump.handler_run import let_run
from turnstile.activities.text import storable, storable_object
from turnstile.activities.turn.settle import end_stopped
from turnstile.activities.turn.turn_events import TurnEvents
from turnstile.bridge.inbox.claims import Claims
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.safety.rules import ROW_LIMIT, LedgerRules, Rule, WatchdogTimes
from turnstile.ledger.operations.recovery import Run, list_in_hand
from turnstile.ledger.operations.sweep import release_stale_claims
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.ends import STOPPED, Ending, fallback_ending, finish_turn
from turnstile.ledger.turns.lease import Claim, LiveTurn
from turnstile.ledger.turns.steps import BegunStep, StepRecord, begin_step
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.log_context import about
from turnstile.runtime.ports import Publisher
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardType, JsonContent, Role, TextContent, content_of, make_card
from turnstile.schema.errors import Refused, ServerUnavailable, StaleTurn
from turnstile.schema.ids import AgentTurnId, step_id, turn_card_id
from turnstile.schema.message_types import Purpose, asks_model
from turnstile.schema.states import HeadStatus, StepPhase, StepStatus, TurnStatus
from turnstile.schema.step_metadata import EndMetadata
from turnstile.schema.turns import TurnRef

log = logging.getLogger(__name__)
_CANCEL_SECONDS = 5.0
EXHAUSTED, LATE, FAILED = "step_attempts_exhausted", "service_timeout", "service_error"


@dataclass(frozen=True, slots=True)
class ServiceTurn:
    """A turn in a handler's hands."""

    turn: TurnRef
    """Its ids: project, channel, agent, turn, epoch, boxes, trace."""
    instruction: str
    """What it was asked: the text of its `task.instruction` cards."""
    context: tuple[Card, ...]
    """All cards of its context box."""
    memory: tuple[Card, ...]
    """The cards of its output box, those of the agent's earlier turns in that box among them."""
    attempt: int
    """1, or more after a crash: then the handler may have done some of it before. Key effects by `agent_turn_id`."""


Handler = Callable[[ServiceTurn], Awaitable[str | JsonObject]]
"""Returns the deliverable, text or a JSON object. Raises `Refused(code, message)` to end the turn as failed with that
code; any other error ends it as `service_error`. It is cancelled when the turn is stopped or the target is lost."""


class InboxService(Claims):
    """The turns of one worker target, each in a task of its own. Holds these tasks and nothing else of any turn."""

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
        """The safety net of this target: run it beside, by a `Watchdog`.

        A turn that waits for room here is not late; a claim is only lost with the answer to it.
        """
        begun = Rule("service", self._begun_before, self._take_up)
        times = replace(times, dispatched_retry=times.inbox_processing_timeout)
        return LedgerRules(self._pool, self, self._publisher, self._served, times, more=[begun])

    async def take_over(self) -> None:
        """What a process before this one had claimed is due again: nobody else may have it in hand."""
        targets, limit = self._served.now(), ROW_LIMIT
        while agents := await self._pool.run(
            lambda conn: release_stale_claims(conn, targets, older_seconds=0, row_limit=limit)
        ):
            await self.claim(agents, "taken over")

    async def close(self, grace_seconds: float) -> None:
        """End; handlers that are not done by then are cancelled, and their turns wait for the next process."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=max(grace_seconds, 0.001))
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=_CANCEL_SECONDS)

    async def start_claimed(self, claim: Claim) -> None:
        """Let its handler run, when there is room."""
        self._start(claim.turn())

    async def ring(self, claims: list[Claim]) -> None:
        """Only a stop means anything to a turn that waits for no calls."""
        turn = claims[0].turn()
        if not any(claim.purpose is Purpose.STOP for claim in claims):
            return
        if (task := self._tasks.get(turn.agent_turn_id)) is None:
            await end_stopped(self._pool, self._publisher, turn)
        else:
            self._stopped.add(turn.agent_turn_id)
            task.cancel()

    async def _begun_before(self, run: Run) -> Sequence[LiveTurn]:
        """Turns that have begun and that nobody has in hand here: of a process before this one, or of a lost server."""
        found = [turn async for turn in list_in_hand(run, self._served.now(), older_seconds=0)]
        return [turn for turn in found if turn.status is HeadStatus.RUNNING and turn.agent_turn_id not in self._tasks]

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
                log.info("turn %s: it went on without us", turn.agent_turn_id)
            except ServerUnavailable as error:
                log.warning("turn %s: left to the safety net: %s", turn.agent_turn_id, error)
            except Exception:  # one turn that goes wrong must not end the others
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
        began = datetime.now(UTC)
        begun = await self._pool.run(lambda conn: begin_step(conn, turn, 0, self._cache))
        hit(Fault.STEP_BEGUN)
        turn_events = TurnEvents(self._publisher, turn, begun.head.context_headers)
        number = begun.head.step_count + 1
        step = step_id(turn.agent_turn_id, number)
        await turn_events.publish(
            turn_events.state(HeadStatus.RUNNING, begun.head.updated_at), turn_events.step(step, StepPhase.STARTED, {})
        )
        card, ending = await self._work(turn, begun)
        metadata = EndMetadata(new_card_ids=(card.card_id,), error_code=ending.error_code)
        status = StepStatus.FAILED if ending.status is TurnStatus.FAILED else StepStatus.COMPLETED
        record = StepRecord(number, metadata, [card], [], began, status)
        # what the handler did cannot be had a second time
        done = await self._pool.insist(lambda conn: finish_turn(conn, turn, ending, record=record))
        await turn_events.finished(self._pool, done, turn_events.completed(number, metadata))

    async def _work(self, turn: TurnRef, begun: BegunStep) -> tuple[Card, Ending]:
        """What the handler comes to: a deliverable, or why there is none."""
        if begun.head.step_attempt > self._max_attempts:
            return _failure(turn, begun, EXHAUSTED, f"the turn was begun {begun.head.step_attempt} times")
        if not asks_model(begun.head.message_type):
            return _failure(turn, begun, FAILED, "a service calls no tools")
        given = ServiceTurn(turn, _instruction(begun), begun.context, begun.output, begun.head.step_attempt)
        try:
            answered = await let_run(self._handler(given), self._deadline, f"handler of turn {turn.agent_turn_id}")
        except TimeoutError:
            return _failure(turn, begun, LATE, f"no answer in {self._deadline:g} s")
        if answered.cancelled():
            return _failure(turn, begun, FAILED, "CancelledError")
        try:
            card = _deliverable(turn, begun.head.step_count + 1, cast("str | JsonObject", answered.result()))
        except Refused as refused:
            return _failure(turn, begun, storable(refused.code)[:100], storable(str(refused))[:500])
        except Exception as error:  # whatever a handler raises ends its turn
            log.exception("turn %s: its handler failed", turn.agent_turn_id)
            return _failure(turn, begun, FAILED, type(error).__name__)
        return card, Ending(TurnStatus.SUCCESS, card.card_id, stats={"steps": begun.head.step_count + 1})


def _deliverable(turn: TurnRef, step: int, value: str | JsonObject) -> Card:
    content = TextContent(text=storable(value)) if isinstance(value, str) else JsonContent(data=storable_object(value))
    return make_card(
        turn_card_id(turn.agent_turn_id, "deliverable"),
        CardType.DELIVERABLE,
        Role.ASSISTANT,
        content,
        author=turn.agent_id,
        turn=turn.agent_turn_id,
        step=step_id(turn.agent_turn_id, step),
        trace=turn.trace_id,
    )


def _failure(turn: TurnRef, begun: BegunStep, code: str, message: str) -> tuple[Card, Ending]:
    stats: JsonObject = {"steps": begun.head.step_count + 1}
    return fallback_ending(turn, begun.output, TurnStatus.FAILED, code, message, stats)


def _instruction(begun: BegunStep) -> str:
    """The text of what was asked; an instruction that is no text is for the handler to read from its card."""
    contents = [content_of(card) for card in begun.context if card.type == CardType.INSTRUCTION]
    return "\n".join(content.text for content in contents if isinstance(content, TextContent))


__all__ = ["EXHAUSTED", "FAILED", "LATE", "STOPPED", "Handler", "InboxService", "ServiceTurn"]
