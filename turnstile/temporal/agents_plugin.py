"""`TurnstileAgents`: a plugin by which a worker of one's own runs what `run_agent` asks for (docs/temporal.md).

It needs NATS or a gateway, no database. Beside the worker it runs a second one on the task queue of waits, where each
waiting call is one coroutine: it hears the turn's end, and looks for it more and more seldom. The connection opens at
the first call, and a worker starts while Turnstile is away: its calls wait.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin
from temporalio.worker import Worker, WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from turnstile.runtime.release import release
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Limited, Refused, TurnstileError
from turnstile.sdk.turns import Client
from turnstile.temporal.agent_calls import ENQUEUE, STOP, WAIT, WAITS_SUFFIX, AgentCall, AgentResult, EnqueuedTurn

_BEATS = 4
"""Heartbeats in a heartbeat timeout; the SDK sends fewer."""


class TurnstileAgents(SimplePlugin):
    """Give it to a `Worker`, or to the `Client` whose workers shall have it; the arguments are `turnstile.Client`'s.

    `max_waits` bounds the turns that one worker waits for at once; more wait in Temporal for a free place.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        project: str | None = None,
        channel: str | None = None,
        token: str | None = None,
        max_waits: int = 10_000,
    ) -> None:
        self._agents = AgentActivities(lambda: Client(address, project=project, channel=channel, token=token))
        self._max_waits = max_waits
        super().__init__(  # pyright: ignore[reportUnknownMemberType]  # temporalio's
            "turnstile.agents",
            activities=[self._agents.enqueue, self._agents.stop],
            workflow_runner=_passing_us_through,
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add the activities, unless this is the worker of waits itself."""
        queue: str = config.get("task_queue", "")  # pyright: ignore[reportUnknownMemberType]  # temporalio's
        return config if queue.endswith(WAITS_SUFFIX) else super().configure_worker(config)

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002 -- its name in temporalio
        """Run the worker, and the one of waits beside it."""
        if worker.task_queue.endswith(WAITS_SUFFIX):
            await next(worker)
            return
        waits = Worker(
            worker.client,
            task_queue=worker.task_queue + WAITS_SUFFIX,
            activities=[self._agents.wait],
            max_concurrent_activities=self._max_waits,
            build_id=f"turnstile-{release()}",
        )
        async with self._agents.connected(), waits:
            await next(worker)


def _passing_us_through(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Let the sandbox take our modules from outside: a workflow's file may import more than `run_agent`."""
    inner = runner or SandboxedWorkflowRunner()
    if not isinstance(inner, SandboxedWorkflowRunner):
        return inner
    return replace(inner, restrictions=inner.restrictions.with_passthrough_modules("turnstile"))


class AgentActivities:
    """The activities behind `run_agent`, over one connection while a worker runs."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._opening: asyncio.Task[Client] | None = None
        self._workers = 0

    @activity.defn(name=ENQUEUE)
    async def enqueue(self, call: AgentCall) -> EnqueuedTurn:
        """Enqueue the turn; every attempt of the same call answers the same turn."""
        info = activity.info()
        asker: JsonObject = {"temporal": {"namespace": info.namespace, "workflow_id": info.workflow_id}}
        with _failures():
            turn = (await self._client()).ask(
                call.agent_id,
                call.instruction,
                conversation=call.conversation_id,
                result_fields=call.result_fields,
                context_box_id=call.context_box_id,
                output_box_id=call.output_box_id,
                profile_name=call.profile_name,
                model=call.model,
                remember=call.remember,
                # a name of the caller's own may be asked for by several workflows, and means the same content
                metadata=call.metadata if call.correlation_id else {**asker, **call.metadata},
                multitask_strategy=call.multitask_strategy or "enqueue",
                budget=call.budget,
                correlation_id=call.correlation_id or activity_correlation_id(),
            )
            turn_id = await turn.start()
            if turn.reply is None or turn.reply.agent_id is None:
                raise Refused("internal_error", "the request was accepted and no agent named")
            return EnqueuedTurn(
                agent_turn_id=turn_id, agent_id=turn.reply.agent_id, output_box_id=turn.reply.output_box_id
            )

    @activity.defn(name=WAIT)
    async def wait(self, enqueued: EnqueuedTurn) -> AgentResult:
        """Wait for the turn's end, however long that takes."""
        with _failures():
            async with _beating():
                turn = await (await self._client()).turn(enqueued.agent_turn_id, agent_id=enqueued.agent_id)
                result = await turn.result()
        return AgentResult(
            agent_turn_id=enqueued.agent_turn_id,
            agent_id=enqueued.agent_id,
            status=result.status.value,
            card_id=result.card_id,
            output_box_id=enqueued.output_box_id,
            partial=result.partial,
            error_code=result.error_code,
            value=result.value if enqueued.with_value else None,
        )

    @activity.defn(name=STOP)
    async def stop(self, agent_turn_id: str, reason: str) -> None:
        """Stop the turn, unless it is over."""
        with _failures():
            await (await (await self._client()).turn(agent_turn_id)).stop(reason)

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Keep the connection inside, once a call has opened it; the last of several workers closes it."""
        self._workers += 1
        try:
            yield
        finally:
            self._workers -= 1
            if self._workers == 0 and (opening := self._opening) is not None:
                self._opening = None
                opening.cancel()
                await asyncio.wait({opening})
                if not opening.cancelled() and opening.exception() is None:
                    await opening.result().close()

    async def _client(self) -> Client:
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._make().open())
        return await asyncio.shield(self._opening)


def activity_correlation_id(key: str = "") -> str:
    """Inside an activity, a `correlation_id` for `Client.ask`: the same in every attempt, and of no other activity.

    An activity that asks for several turns gives each a `key`.
    """
    info = activity.info()
    named = info.namespace, info.workflow_id, info.workflow_run_id or info.activity_run_id, info.activity_id, key
    return f"temporal-{hashlib.sha256(json.dumps(named).encode()).hexdigest()[:40]}"


@asynccontextmanager
async def _beating() -> AsyncGenerator[None]:
    """Heartbeat while the block runs, so that the server notices a dead worker."""
    timeout = activity.info().heartbeat_timeout or timedelta(seconds=60)

    async def beat_on() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(timeout.total_seconds() / _BEATS)

    task = asyncio.create_task(beat_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@contextmanager
def _failures() -> Generator[None]:
    """Turn our errors into failures of the activity, with their code as type; what is refused is not tried again."""
    try:
        yield
    except Limited as error:
        again = None if error.retry_after is None else timedelta(seconds=error.retry_after)
        raise ApplicationError(str(error), type=error.code, next_retry_delay=again) from None
    except (BadRequest, Refused) as error:
        final = error.code != TurnstileError.code
        raise ApplicationError(str(error), type=error.code, non_retryable=final) from None
    except TurnstileError as error:
        raise ApplicationError(str(error), type=error.code) from None
