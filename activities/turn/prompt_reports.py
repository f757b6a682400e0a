"""Reports that come while the step that made the calls still runs: it goes on with them, and its workflow is not woken.

A quick step (`run_quick_step`) whose calls are all of tools that are known to answer fast waits for them, at most
`WAIT_SECONDS` in all. A report that a bridge of the same process stores or claims meanwhile is given to the step: no
claim, no signal, no timer, no further workflow task. The ledger decides as ever. What a process that dies was given is
due again by the rules *doorbell* and *resume* (protocol §8). A stop ends the wait.
"""

import asyncio
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress

from turnstile.activities.turn.fast_answers import FastAnswers
from turnstile.ledger.turns.steps import StepHead
from turnstile.schema.ids import AgentTurnId, ToolCallId
from turnstile.schema.turns import Ring, StepSuspends, TurnRef

_MISSED = 0.9
"""A wait in vain counts as an answer after this share of the longest wait: slow, but it does not reset the count."""
WAIT_SECONDS = 0.5
"""The longest that a quick step, with the steps that follow in it, waits for its calls."""


class Answers:
    """The reports of some calls, as far as they have come."""

    def __init__(self, calls: Collection[ToolCallId]) -> None:
        self._missing = set(calls)
        self._rings: list[Ring] = []
        self._over = asyncio.Event()

    @property
    def missing(self) -> Collection[ToolCallId]:
        """The calls without a report."""
        return self._missing

    def add(self, rings: Sequence[Ring]) -> None:
        """Take reports."""
        self._rings += rings
        self._missing -= {ring.correlation_id for ring in rings}
        if not self._missing:
            self._over.set()

    def release(self) -> None:
        """End the wait with what there is."""
        self._over.set()

    async def within(self, seconds: float) -> tuple[Ring, ...]:
        """What has come when all have, after these seconds, or at a release."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self._over.wait()
        return tuple(self._rings)


class PromptReports:
    """The steps of this process that wait for reports, by turn and epoch."""

    def __init__(self) -> None:
        self._expected: dict[tuple[AgentTurnId, int], Answers] = {}

    @contextmanager
    def expected(self, turn: TurnRef, calls: Collection[ToolCallId]) -> Generator[Answers]:
        """Take the reports of these calls during the block; open it before their commands are published."""
        key, answers = (turn.agent_turn_id, turn.turn_epoch), Answers(calls)
        self._expected[key] = answers
        try:
            yield answers
        finally:
            if self._expected.get(key) is answers:
                del self._expected[key]

    def give(self, turn: AgentTurnId, epoch: int, rings: Sequence[Ring]) -> bool:
        """Give these reports to the step that waits for them; False if none does, and its workflow must be woken."""
        answers = self._expected.get((turn, epoch))
        if answers is None:
            return False
        answers.add(rings)
        return True

    def release(self, turn: AgentTurnId, epoch: int) -> None:
        """End the wait of the turn's step, if it waits: something else has come up."""
        if (answers := self._expected.get((turn, epoch))) is not None:
            answers.release()


class FastTools:
    """The tools that are known to answer fast, learned from calls that were answered; and the steps that wait for them.

    Without `reports` no bridge gives reports to steps in this process, and no step waits.
    """

    def __init__(self, reports: PromptReports | None = None) -> None:
        self._reports = reports
        self._fast = FastAnswers(WAIT_SECONDS)

    def learn(self, turn: TurnRef, head: StepHead) -> None:
        """Learn from the calls that the step before this one made."""
        for call in head.answered if head.suspended_at is not None else ():
            if call.reported_at is not None and head.suspended_at is not None:
                self._fast.record(_key(turn, call.tool_name), (call.reported_at - head.suspended_at).total_seconds())

    def may_answer(self, turn: TurnRef, result: StepSuspends) -> PromptReports | None:
        """Where a step that suspends its turn can wait for the calls; None if not all of its tools are fast."""
        fast = result.quick and all(self._fast.is_quick(_key(turn, tool)) for tool in result.tools)
        return self._reports if fast else None

    def missed(self, turn: TurnRef, result: StepSuspends, answers: Answers) -> None:
        """Learn that a step has waited for these tools in vain."""
        for call, tool in zip(result.waiting, result.tools, strict=True):
            if call in answers.missing:
                self._fast.record(_key(turn, tool), WAIT_SECONDS * _MISSED)


def _key(turn: TurnRef, tool_name: str) -> str:
    return f"{turn.project_id}/{tool_name}"
