"""A conversation of two agents, twenty turns long, whose worker and bridge are killed (-9) at random moments.

Each turn is made once, and its agents remember each message once, so that the reply is the one of a quiet day.
`--talk-seeds 10` plays it with ten seeds.
"""

import asyncio
import logging
import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.support.conditions import until
from tests.support.faults.points import HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.process import Processes, TurnstileProcess
from tests.support.processes.stack import Stack
from tests.support.pump.pump import ORGANISM, Caller, assert_threads, calling_in, pump_config
from tests.support.pump.troupe import ACTORS, TROUPE, Brief, asked, hire, play, send, think, verdict
from turnstile.runtime.faults import Fault
from turnstile.schema.wire.inbox import SendReply

pytestmark = pytest.mark.stack(pump_config(HASTY, listeners=[ORGANISM, TROUPE]), ACTORS)

log = logging.getLogger(__name__)
POINT = Fault.HOP_ENQUEUED
TURNS = 20
KILLS = 4
PATIENCE_SECONDS = 150.0
ASKS = range(1, TURNS // 2)
BRIEF = Brief(
    play=play(*(send("bob", play=play(verdict(f"answer {number}", number))) for number in ASKS), think("all"))
)


def remembered() -> list[tuple[str, str]]:
    """All that the agent is asked with in its last turn."""
    said = [
        ("bob", f"<verdict><said>answer {number}</said><score>{number}</score></verdict>", number) for number in ASKS
    ]
    told = [("external:client", BRIEF.to_xml().decode()), *((sender, payload) for sender, payload, _ in said)]
    told.append(("alice", "<thought><reasoning>all</reasoning></thought>"))
    heard = [("user", f"Message from {sender}:\n{payload}") for sender, payload in told]
    done = [("assistant", ""), ("tool", '{"status":"success","result":{"accepted":true}}')]
    return [each for message in heard[:-1] for each in (message, *done)] + heard[-1:]


async def kill_on_the_way(caller: Caller, sent: SendReply, processes: Processes, random: Random) -> int:
    """Kill one of them, or both, soon after each of a few messages; returns how many died."""
    killed = 0
    for number in sorted(random.sample(range(1, TURNS), KILLS)):

        async def there(number: int = number) -> bool:
            return len(await caller.messages(sent)) >= number

        await until(there, PATIENCE_SECONDS, f"message {number} is there")
        await asyncio.sleep(random.uniform(0, 0.2))  # somewhere in its handling
        victims: list[TurnstileProcess] = random.choice(
            [[processes.worker], [processes.bridge], [processes.worker, processes.bridge]]
        )
        for victim in victims:
            await victim.kill()
            await victim.launch()
            killed += 1
    return killed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """As many seeds as the command line says."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(1, int(str(metafunc.config.getoption("--talk-seeds"))) + 1))


async def test_a_turn_is_asked_for_once_where_the_worker_dies_after_its_enqueue(
    stack: Stack, processes: Processes, tmp_path: Path
) -> None:
    await processes.worker.stop()
    processes.worker.env = {"TURNSTILE_FAULTS": f"{POINT}=kill", "TURNSTILE_FAULTS_DIR": str(tmp_path)}
    await processes.worker.start()
    async with calling_in(stack) as caller:
        await hire(caller.tenant, "alice")
        sent = await caller.send("alice", Brief(play=play(verdict("all is well", 1))))
        assert await processes.worker.died() == -signal.SIGKILL
        assert (tmp_path / POINT).exists()
        processes.worker.env = {}
        await processes.worker.start()
        heard = await caller.heard(sent, PATIENCE_SECONDS)
        assert "all is well" in str(heard.payload)
        assert await caller.tenant.count("state.agent_inbox", "message_type = 'turn'") == 1
        assert await caller.stored() == [sent.message_id]


@pytest.mark.long
async def test_a_conversation_outlives_its_processes(stack: Stack, processes: Processes, seed: int) -> None:
    began = time.monotonic()
    async with calling_in(stack) as caller:
        await hire(caller.tenant, "alice", "bob")
        sent = await caller.send("alice", BRIEF)
        killed = await kill_on_the_way(caller, sent, processes, Random(seed))  # noqa: S311 -- a seed is what is wanted
        heard = await caller.heard(sent, PATIENCE_SECONDS)
        assert asked(heard) == remembered()
        lines = await caller.messages(sent)
        turns = [line.agent_turn_id for line in lines]
        assert len(set(turns) - {None}) == len(turns) == TURNS
        ended = [await caller.tenant.ended(turn, PATIENCE_SECONDS) for turn in turns if turn is not None]
        assert {each.view.status for each in ended} == {"success"}
        assert [len(each.steps) for each in ended] == [1] * TURNS
        assert await caller.tenant.count("state.agent_inbox", "message_type = 'turn'") == TURNS
        assert await caller.tenant.task_events() == dict.fromkeys(turns, 1)
        assert await caller.stored() == [sent.message_id]
        async with stack.pool.connection() as conn:
            await assert_threads(conn)
            await assert_invariants(conn)
    log.info("seed %s: %s kills, %.1f s", seed, killed, time.monotonic() - began)
