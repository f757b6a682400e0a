"""Two projects, two workers and two models, of which one answers 429 and 503 in waves (protocol §7.9).

All turns end well, nothing is sent to a provider that wants nothing, projects take turns, and costs are exact. In the
long run the workers are processes, and there are 200 turns.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.activities.models.http_stub import HttpReply, HttpRequest
from tests.activities.models.openai_stub import OpenAIStub
from tests.activities.models.provider_stub import COMPLETION_TOKENS, PROMPT_TOKENS, Fault, Said
from tests.conftest import USUALLY_AND_LONG
from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.process import TurnstileProcess
from tests.support.processes.stack import QUICK, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.ledger.budgets.model_queues import load_model_queues
from turnstile.ledger.turns.usage import sum_usage
from turnstile.processes.run import run_bridge, run_worker
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import TurnStatus

LIMITED, OTHER = "gpt-4o", "gpt-4o-mini"
TOKENS = PROMPT_TOKENS + COMPLETION_TOKENS
COST = 9.75e-05
"""Of one answer, all of which say that they are of `gpt-4o`."""
_LOOK_SECONDS = 0.01


@dataclass
class Waves(OpenAIStub):
    """Refuses all requests to `LIMITED` for `pause` seconds after each `calm` of its answers."""

    pause: int = 1
    calm: int = 8
    in_flight_seconds: float = 0.5
    """How long after the first refusal of a wave a request that was sent before may arrive. Not counted is the time
    for which this process, and the workers in it, were held up."""
    paused_until: float = 0.0
    began: float = 0.0
    held_up: float = 0.0
    """For how long the event loop was, in this wave."""
    waves: int = 0
    left: int = 0
    """Answers until the next wave."""
    is_shut: bool = True
    """Whether each wave is followed by the next one."""
    too_early: list[float] = field(default_factory=list[float])
    """Those that arrived later: how many seconds before they might have."""
    answered: list[str] = field(default_factory=list[str])
    """The projects of the answers of `LIMITED`, in order."""

    def __post_init__(self) -> None:
        super().__init__(Said(text=("x",)))

    async def reply(self, request: HttpRequest) -> HttpReply:
        """An answer after a moment, or a refusal."""
        body: Any = request.json()
        now = asyncio.get_running_loop().time()
        if body["model"] == LIMITED:
            if now < self.paused_until:
                if now - self.began - self.held_up > self.in_flight_seconds:
                    self.too_early.append(self.paused_until - now)
                return self._refusal(self.paused_until - now)
            if self.left == 0 or self.is_shut:
                self.left, self.waves, self.began, self.held_up = self.calm, self.waves + 1, now, 0.0
                self.paused_until = now + self.pause
                return self._refusal(self.pause)
            self.left -= 1
            self.answered.append(body["messages"][-1]["content"])
        await asyncio.sleep(0.05)
        return await super().reply(request)

    async def watch(self) -> None:
        """Measure for how long the event loop is held up."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await asyncio.sleep(_LOOK_SECONDS)
            self.held_up += clock() - began - _LOOK_SECONDS

    def _refusal(self, seconds: float) -> HttpReply:
        status = 429 if self.waves % 2 else 503
        return self._fault(Fault(status, headers={"retry-after-ms": str(int(seconds * 1000) + 1)}))


@pytest.fixture
async def stub() -> AsyncIterator[Waves]:
    """The provider."""
    async with Waves() as running:
        watching = asyncio.create_task(running.watch())
        yield running
        watching.cancel()


@pytest.fixture
async def stack(stacks: Stacks, stub: Waves, key_file: Path) -> AsyncIterator[Stack]:
    """A stack whose models of OpenAI are the stub's."""
    own = {"api_key_files.openai": str(key_file), "api_bases.openai": stub.api_base, "timeout_seconds": 20.0}
    worker = {**QUICK["worker"], "max_concurrency": 150, "activity_heartbeat_timeout_seconds": 60.0}
    async with stacks.open({**QUICK, "worker": worker, "model": {**QUICK["model"], **own}}) as opened:
        yield opened


@asynccontextmanager
async def two_workers(stack: Stack, *, apart: bool) -> AsyncGenerator[None]:
    """Two workers and a bridge: here, or the workers as processes."""
    async with AsyncExitStack() as running:
        await running.enter_async_context(running_here(stack, run_bridge))
        for number in range(2):
            if apart:
                worker = TurnstileProcess("worker", stack.config)
                worker.log = stack.config.with_name(f"worker-{number}.log")
                running.push_async_callback(worker.remove)
                await worker.start()
            else:
                await running.enter_async_context(running_here(stack, run_worker))
        yield


@pytest.mark.parametrize("size", USUALLY_AND_LONG)
async def test_a_model_that_refuses_in_waves_costs_no_turn_and_gets_no_request_in_a_pause(
    stack: Stack, stub: Waves, size: str
) -> None:
    turns, many = (200, new_tenant(stack)) if size == "long" else (30, new_tenant(stack))
    few = new_tenant(stack)
    stub.calm, stub.pause = turns // 5, max(1, turns // 66)
    stub.in_flight_seconds = stub.pause / 2
    async with two_workers(stack, apart=size == "long"):
        first = [await begun(many, LIMITED, turns * 4 // 10), await begun(many, OTHER, turns // 2)]
        await until(lambda: waiting(stack, turns * 4 // 10 - 1), 90, "the large project waits, but for a probe")
        later = await begun(few, LIMITED, turns // 10)
        await until(lambda: waiting(stack, turns // 2 - 1), 90, "the small one waits behind it")
        stub.is_shut = False
        ends = [await all_end(many, each) for each in first] + [await all_end(few, later)]
        await until(lambda: is_open(stack), 25, "a queue that is open again")
    assert sum(ends) == turns
    assert [round(seconds, 3) for seconds in stub.too_early] == []
    assert stub.waves >= 2
    last = max(place for place, project in enumerate(stub.answered) if project == few.project)
    assert last <= 2 * (turns // 10) + turns // 6, stub.answered  # every second answer is its own, though it came last
    for tenant, limited, other in ((many, turns * 4 // 10, turns // 2), (few, turns // 10, 0)):
        *_, total = await tenant.pool.run(lambda conn, project=tenant.project: sum_usage(conn, project, "model"))
        assert total.turns == total.attempts - total.failed_attempts == limited + other
        assert total.total_tokens == TOKENS * (limited + other)
        assert total.response_cost == pytest.approx(COST * (limited + other))
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


async def begun(tenant: Tenant, model: str, count: int) -> list[AgentTurnId]:
    """Enqueue so many turns, each with a budget."""
    ids = [AgentId(f"{model}-{number}") for number in range(count)]
    for agent in ids:
        await tenant.agent("x", agent, llm={"model": f"openai/{model}"}, max_steps=2)
    return [turn_of(await tenant.enqueue(agent, tenant.project, budget={"max_tokens": 100_000})) for agent in ids]


async def all_end(tenant: Tenant, turns: list[AgentTurnId]) -> int:
    """Wait for their ends, all of which are a success that is booked as the provider says."""
    for turn in turns:
        ended = await tenant.ended(turn, timeout=120)
        codes = [record.get("error_code") for step in ended.steps for record in attempts(step.metadata)]
        assert (ended.view.status, ended.view.error_code) == (TurnStatus.SUCCESS, None), codes
        used = [use["tokens"] for step in ended.steps for use in uses(step.metadata)]
        assert used == [0] * (len(codes) - 1) + [TOKENS], codes
    return len(turns)


def attempts(metadata: Any) -> list[Any]:
    """The recorded attempts of a step."""
    return metadata["attempts"]


def uses(metadata: Any) -> list[Any]:
    """What the budget booked for each."""
    return metadata["budget"]["uses"]


async def waiting(stack: Stack, many: int) -> bool:
    """Whether at least so many requests wait for their turn."""
    return sum(len(queue.state.waiting) for queue in await stack.pool.run(load_model_queues)) >= many


async def is_open(stack: Stack) -> bool:
    """Whether no queue holds a request up."""
    return await stack.pool.run(load_model_queues) == []
