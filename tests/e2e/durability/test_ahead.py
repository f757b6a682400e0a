"""A primary dies whose standby had not received everything (protocol §16): what NATS and Temporal know beyond it."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.support.conditions import until
from tests.support.faults.points import DONE
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.postgres_pair import PostgresPair
from tests.support.processes.process import processes_of
from tests.support.processes.stack import QUICK, Config, Stack, write_config
from tests.support.tenants import Tenant, new_tenant, turn_of
from tests.support.tools import Hand, calling, hand_of
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import ReplyStatus

log = logging.getLogger(__name__)
SOON: Config = {**QUICK, "bridge": {**QUICK["bridge"], "command_retry_seconds": 2.0}}
OTHER = AgentId("other")


async def over(tenant: Tenant, turn: AgentTurnId) -> bool:
    """Whether the turn has an outcome that was announced."""
    return await tenant.count("state.turn_outcomes", f"agent_turn_id = '{turn}' AND announced_at IS NOT NULL") > 0


async def asleep(tenant: Tenant, turn: AgentTurnId) -> bool:
    """Whether the turn waits for its call."""
    return await tenant.count("state.agent_state_head", f"active_agent_turn_id = '{turn}' AND status = 'suspended'") > 0


async def answer(hand: Hand, number: int) -> None:
    """Report the call of this number, once its command is heard."""
    await hand.report((await hand.heard(number))[number - 1].call)


async def beyond_ledger(tenant: Tenant) -> list[tuple[str, str]]:
    """What was told and lost, as the ledger's rejections name it, once they do."""

    async def found() -> list[tuple[str, str]]:
        rows = await tenant.rows(
            "SELECT ids ->> 'agent_turn_id' AS turn, error FROM state.rejections"
            " WHERE project_id = $1 AND error_code = 'beyond_ledger' ORDER BY 1",
            tenant.project,
        )
        return [(row["turn"], row["error"].partition(" was told")[0]) for row in rows]

    return await until(found, 25, "what is beyond the ledger is told")


@asynccontextmanager
async def answering(*hands: Hand) -> AsyncGenerator[None]:
    """Each tool answers each command that it hears, as a real one would; what the ledger says of it is not asked."""

    async def serve(hand: Hand) -> None:
        done = 0
        while True:
            for command in hand.commands[done:]:
                await hand.answer(command.call)
            done = len(hand.commands)
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(serve(h)) for h in hands]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.long
async def test_what_an_asynchronous_standby_has_not_received_is_found_and_told(
    pair: PostgresPair, failing: Stack, hatching: Hatchery
) -> None:
    """Lost: the end of one turn, the second step of another, and all of a third."""
    [target] = failing.settings.worker.worker_targets
    write_config(failing.directory, failing.endpoints, target, SOON)
    async with (
        processes_of(failing.config, hatching) as both,
        hand_of(new_tenant(failing)) as ended,
        hand_of(new_tenant(failing)) as stepped,
    ):
        await both.ensure()
        pids = (both.worker.pid, both.bridge.pid)
        hands, tenant = (ended, stepped), stepped.tenant
        await tenant.agent("plain", OTHER)
        known = [await hand.suspended(calling("search"), calling("search"), DONE) for hand in hands]
        for each, turn in zip(hands, known, strict=True):
            await until(lambda each=each, turn=turn: asleep(each.tenant, turn), 25, "it sleeps")
        await pair.until_standby_has_all()
        await pair.cut()
        for number in (1, 2):
            await answer(ended, number)
        await until(lambda: over(ended.tenant, known[0]), 25, "a known turn ends in the lost part")
        await answer(stepped, 1)
        lost_call = (await stepped.heard(2))[1].call
        lost = turn_of(await tenant.enqueue(OTHER, correlation_id="once"))
        await until(lambda: over(tenant, lost), 25, "a turn of the lost part ends")
        heard = len(ended.commands)
        await pair.kill("a")
        await pair.promote("b")
        promoted = time.monotonic()
        late = await stepped.answer(lost_call)
        assert (late.status, late.error_code) == (ReplyStatus.REJECTED, "unknown_call")
        async with answering(*hands):
            for each, turn in zip(hands, known, strict=True):
                await until(lambda each=each, turn=turn: over(each.tenant, turn), 40, "what is known ends again")
        log.warning("what was in hand had ended %.1f s after the promotion", time.monotonic() - promoted)
        again = turn_of(await tenant.enqueue(OTHER, correlation_id="once"))
        assert again != lost
        await until(lambda: over(tenant, again), 25, "who asks again is served")
        assert (both.worker.pid, both.bridge.pid) == pids
        [era] = await pair.fetch("b", "SELECT * FROM state.ledger_era")
        assert (era["era"], era["carried_count"]) == (1, 2)
        assert await ended.tenant.task_events() == {known[0]: 2}  # the lost end, and the one that holds
        assert await tenant.task_events() == {known[1]: 1, lost: 1, again: 1}
        assert len(ended.commands) > heard
        calls = await tenant.rows(
            "SELECT tool_call_id FROM state.turn_waiting_tools WHERE project_id = $1", tenant.project
        )
        assert lost_call not in {row["tool_call_id"] for row in calls}  # its step was made again, with another call
        beyond = await beyond_ledger(ended.tenant), await beyond_ledger(tenant)
        assert beyond == ([(known[0], "an end of this turn")], [(lost, "the end of a turn")])
    async with failing.pool.connection() as conn:
        await assert_invariants(conn)
