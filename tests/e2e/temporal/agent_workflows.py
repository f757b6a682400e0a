"""Workflows of somebody else, who asks agents; run in the SDK's sandbox."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import workflow

from turnstile.temporal import AgentCanceled, AgentResult, run_agent
from turnstile.temporal.agent_calls import WAIT, WAITS_SUFFIX, EnqueuedTurn


@dataclass
class Asked:
    """Arguments of `run_agent`."""

    given: dict[str, Any] = field(default_factory=dict[str, Any])
    heartbeat_seconds: float = 2.0
    timeout_seconds: float | None = None


async def asked(what: Asked) -> AgentResult:
    """The call."""
    timing: dict[str, Any] = {"heartbeat_timeout": timedelta(seconds=what.heartbeat_seconds)}
    if what.timeout_seconds is not None:
        timing["schedule_to_close_timeout"] = timedelta(seconds=what.timeout_seconds)
    return await run_agent(**what.given, **timing)


@workflow.defn
class AskOnce:
    """One call."""

    @workflow.run
    async def run(self, what: Asked) -> AgentResult:
        """Its result."""
        return await asked(what)


@workflow.defn
class AskAndTellOfItsEnd:
    """One call, whose cancellation the workflow takes for an answer."""

    @workflow.run
    async def run(self, what: Asked) -> AgentResult:
        """What the turn came to, whoever ended it."""
        try:
            return await asked(what)
        except AgentCanceled as canceled:
            return canceled.result


@workflow.defn
class AskMany:
    """Many calls at once."""

    @workflow.run
    async def run(self, what: Asked, times: int) -> list[AgentResult]:
        """Their results."""
        return list(await asyncio.gather(*(asked(what) for _ in range(times))))


@workflow.defn
class AskAgain:
    """A call in each of its runs."""

    @workflow.run
    async def run(self, what: Asked, runs: int) -> str:
        """The turn of the last run."""
        result = await asked(what)
        if runs > 1:
            workflow.continue_as_new(args=[what, runs - 1])
        return result.agent_turn_id


@workflow.defn
class WaitOften:
    """Many waits for one turn."""

    @workflow.run
    async def run(self, turn: EnqueuedTurn, times: int) -> int:
        """How many of them told of a success."""
        waits = [
            workflow.execute_activity(
                WAIT,
                turn,
                result_type=AgentResult,
                task_queue=workflow.info().task_queue + WAITS_SUFFIX,
                schedule_to_close_timeout=timedelta(hours=1),
                heartbeat_timeout=timedelta(seconds=60),
            )
            for _ in range(times)
        ]
        return sum(each.ok for each in await asyncio.gather(*waits))


WORKFLOWS = [AskOnce, AskAndTellOfItsEnd, AskMany, AskAgain, WaitOften]
