"""Who hears a doorbell: the bridge itself where it serves the target, else whoever does, over NATS."""

import json

from tests.support.faults.points import DONE
from tests.support.tenants import Tenant
from tests.support.tools import call_of, calling, hand_of
from turnstile.ledger.turns.roster import add_agent
from turnstile.schema.ids import AgentId, uuid7
from turnstile.schema.wire import subjects


async def test_none_leaves_a_process_that_claims_for_the_target(tenant: Tenant) -> None:
    [target] = tenant.stack.settings.worker.worker_targets
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), DONE)
        queued = await hand.start(DONE)
        await hand.report(call_of(turn))
        for each in (turn, queued):
            assert (await hand.ended(each)).view.status == "success"
    assert await tenant.rung(target) is None


async def test_another_target_is_rung_for_in_nats(tenant: Tenant) -> None:
    target = f"w-{uuid7()}"
    await tenant.profile("elsewhere", "plain")
    await add_agent(tenant.pool, tenant.project, AgentId("bob"), "elsewhere", worker_target=target)
    reply = await tenant.enqueue(AgentId("bob"))
    bell = await tenant.rung(target)
    assert bell is not None
    assert (bell.agent_id, bell.inbox_id, bell.reason) == ("bob", reply.inbox_id, "enqueue")
    subject = f"cg.v1r4.{tenant.project}.public.cmd.agent.{target}.wakeup"
    stored = await tenant.stack.conn.js.get_last_msg(subjects.CMD_STREAM, subject)
    assert json.loads(stored.data or b"")["agent_id"] == "bob"
