"""`conversations`: many conversations of one profile at once, two turns each, next to bare workflows.

Every first turn makes its conversation and its instance of the profile. Every second one must answer with what was said
in its own conversation before, and with nothing else.
"""

import asyncio
import time

from lab.bench.agents import PROFILE
from lab.bench.bars import Bars
from lab.bench.children import BenchError
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, medians, ratio
from lab.bench.system import System, open_system
from lab.bench.yardsticks.take import bare_workers
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import value_of
from turnstile.schema.ids import AgentTurnId
from turnstile.sdk.nats_turns import describe, turn_in

_REQUESTS = 100
"""Requests at one moment: a bridge refuses more than a few hundred of one project as `overloaded`."""
_SAID = "You said: marker {name} again (before that: marker {name})"


async def run_conversations(environment: Environment, bars: Bars) -> Result:
    """Measure turns of conversations that are made while they are measured."""
    plan, rounds = environment.plan, list[dict[str, float]]()
    async with (
        # unlimited: what is measured asks more often than one project may by default
        open_system(environment, "conversations", "chat", 1, sections={"limits": {"requests_per_second": 0}}) as system,
        bare_workers(environment) as bares,
    ):
        with bars.bar("conversations: turns and bare workflows in turns", plan.rounds * 2) as advance:
            for number in range(plan.rounds):
                values = await bares.at_once("one", plan.turns)
                advance(1)
                values["turns rate"] = await _talk(system, f"{number}", plan.conversations)
                advance(1)
                rounds.append(values)
    values = medians(rounds)
    figures = [
        Figure(name="conversations at once, two turns each", value=plan.conversations),
        Figure(name="turns", value=values["turns rate"], unit="/s"),
        Figure(name="bare workflows, one activity", value=values["bare one rate"], unit="/s"),
        Figure(name="turns/s ÷ bare workflows/s", value=ratio(values["turns rate"], values["bare one rate"])),
        *await system.common(),
    ]
    return Result(scenario="conversations", figures=tuple(figures), details={"rounds": [{**r} for r in rounds]})


async def _talk(system: System, prefix: str, count: int) -> float:
    """Two turns in each of so many new conversations, all at once; returns turns per second. Checks every answer."""
    began, room = time.perf_counter(), asyncio.Semaphore(_REQUESTS)
    pairs = await asyncio.gather(*(_two_turns(system, room, f"{prefix}-{number}") for number in range(count)))
    took = time.perf_counter() - began
    for name, turn in pairs:
        answer = await _answer(system, turn)
        if answer != _SAID.format(name=name):
            raise BenchError(f"turn {turn} of conversation {name} answered {answer!r:.200}")
    return 2 * count / took


async def _two_turns(system: System, room: asyncio.Semaphore, name: str) -> tuple[str, AgentTurnId]:
    request: JsonObject = {"profile_name": PROFILE, "conversation_id": f"c-{name}"}
    async with room:
        first = await system.load.request({**request, "instruction": f"marker {name}"})
        second = await system.load.request({**request, "instruction": f"marker {name} again"})
    await system.load.wait(first)
    await system.load.wait(second)
    return name, second


async def _answer(system: System, turn: AgentTurnId) -> object:
    client = system.load.client
    view = turn_in(await describe(client, {"agent_turn_id": turn}))
    card = (await describe(client, {"card_id": view.deliverable_card_id})).card
    return None if card is None else value_of(card)
