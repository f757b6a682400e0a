"""Two thousand calls that wait in one worker: what that costs, and that all of them hear the end."""

import asyncio
import logging

import pytest

from lab.bench.proc import cpu_seconds
from tests.e2e.temporal.agent_workflows import WaitOften
from tests.e2e.temporal.conftest import Theirs
from tests.support.conditions import until
from tests.support.memory import resident_bytes
from tests.support.tenants import ALICE
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.temporal.agent_calls import WAIT, EnqueuedTurn

WORKFLOWS, EACH, SECONDS = 20, 100, 20.0
log = logging.getLogger(__name__)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_two_thousand_waits_in_a_worker_are_cheap_and_all_hear_the_end(theirs: Theirs) -> None:
    patient = definition(options={"suspend_timeout_seconds": 3600})
    async with hand_of(theirs.tenant, patient) as hand, theirs.process() as worker:
        before = resident_bytes(worker.pid)
        turn = await hand.start(calling("search"), {"text": "found"})
        waited = EnqueuedTurn(agent_turn_id=turn, agent_id=ALICE, output_box_id=None)
        handles = [await theirs.start(WaitOften.run, waited, EACH) for _ in range(WORKFLOWS)]

        async def all_wait() -> bool:
            pending = [(await handle.describe()).raw_description.pending_activities for handle in handles]
            begun = [each for some in pending for each in some if each.HasField("last_started_time")]
            return sum(each.activity_type.name == WAIT for each in begun) == WORKFLOWS * EACH

        await until(all_wait, 300, "all calls wait", pause=1)
        cpu = cpu_seconds(worker.pid)
        await asyncio.sleep(SECONDS)  # what is measured is how much it works in this time
        busy, grown = (cpu_seconds(worker.pid) - cpu) / SECONDS, (resident_bytes(worker.pid) - before) / 1e6
        await hand.report(call_of(turn))
        loop = asyncio.get_running_loop()
        told_at = loop.time()
        async with asyncio.timeout(300):
            heard = await asyncio.gather(*(handle.result() for handle in handles))
        log.warning(
            "%d waits: %.0f MB, %.0f %% of a core, ended in %.0f s",
            *(sum(heard), grown, busy * 100),
            loop.time() - told_at,
        )
        assert sum(heard) == WORKFLOWS * EACH
        assert grown < 300
        assert busy < 0.5
