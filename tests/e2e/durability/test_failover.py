"""A primary is killed under load and its standby is promoted (protocol §16): processes of ours run on."""

import logging
import time

import pytest

from tests.e2e.durability.failover_load import load_on
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.postgres_pair import PostgresPair
from tests.support.processes.process import processes_of
from tests.support.processes.stack import Stack

log = logging.getLogger(__name__)


@pytest.mark.long
async def test_a_synchronous_standby_that_takes_over_has_lost_nothing(
    pair: PostgresPair, failing: Stack, hatching: Hatchery
) -> None:
    await pair.make_synchronous()
    async with processes_of(failing.config, hatching) as both:
        await both.ensure()
        pids = (both.worker.pid, both.bridge.pid)
        async with load_on(failing, 8) as load:
            await load.more(24)
            await pair.kill("a")
            killed = time.monotonic()
            await pair.promote("b")
            promoted = time.monotonic()
            await load.more(1)
            first = time.monotonic() - promoted
            await load.more(48)
        assert (both.worker.pid, both.bridge.pid) == pids
        [era] = await pair.fetch("b", "SELECT * FROM state.ledger_era")
        log.warning(
            "%s; first end %.1f s after the promotion, which took %.1f s; %d turns carried over",
            *(load.counts(), first, promoted - killed, era["carried_count"]),
        )
        assert era["era"] == 1
        assert await load.lost() == []
    async with failing.pool.connection() as conn:
        await assert_invariants(conn)
