"""An era of the ledger begins while turns are in hand (protocol §16): each goes on from what the ledger knows."""

import signal

from tests.support.conditions import until
from tests.support.faults.points import DONE
from tests.support.processes.process import Processes
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from tests.support.tools import calling, hand_of
from turnstile.ledger.pool import Pool
from turnstile.runtime.faults import Fault
from turnstile.schema.ids import AgentTurnId, era_of
from turnstile.schema.wire import headers

POINTS = (Fault.TURN_CARRIED,)


async def begin_era(stack: Stack) -> int:
    """As if the server had been promoted: the next session that opens begins an era; returns its floor."""
    async with stack.pool.connection() as conn:
        await conn.execute("UPDATE state.ledger_era SET timeline_id = timeline_id - 1")
    pool = Pool(stack.endpoints.database_url, size=1)
    async with pool.connection() as conn:
        [era] = await conn.fetch("SELECT epoch_floor FROM state.ledger_era")
    await pool.close()
    return era["epoch_floor"]


async def is_carried(tenant: Tenant, turn: AgentTurnId) -> bool:
    """Whether the turn's workflow is one of the new era, as the ledger has it."""
    [head] = await tenant.rows("SELECT is_carried FROM state.agent_state_head WHERE active_agent_turn_id = $1", turn)
    return not head["is_carried"]


async def test_a_sleeping_turn_is_carried_over_although_the_bridge_dies_there(
    apart: Tenant, processes: Processes, stack: Stack
) -> None:
    async with hand_of(apart) as hand:
        turn = await hand.suspended(calling("search"), DONE)
        [command] = await hand.heard()
        struck = stack.directory / "struck"
        struck.mkdir()
        await processes.bridge.stop()
        processes.bridge.env = {"TURNSTILE_FAULTS": f"{Fault.TURN_CARRIED}=kill", "TURNSTILE_FAULTS_DIR": str(struck)}
        floor = await begin_era(stack)
        await processes.bridge.launch()
        assert await processes.bridge.died() == -signal.SIGKILL
        assert not await is_carried(apart, turn)
        processes.bridge.env = {}
        await processes.bridge.start()
        await until(lambda: is_carried(apart, turn), 25, "the turn is carried over")
        await hand.report(command.call)
        assert (await hand.ended(turn)).view.status == "success"
    [told] = await apart.events("agent.*.task")
    assert told.headers[headers.MSG_ID] == f"task-{turn}-{era_of(floor)}"
    assert told.headers[headers.TURN_EPOCH] == str(floor)
    assert await apart.count("state.turn_outcomes", f"turn_epoch = {floor}") == 1
