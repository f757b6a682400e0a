"""Who has signed on in `state.workers`, and who has left (protocol §4)."""

from functools import partial

from tests.support.conditions import until
from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks

PRESENT = "SELECT worker_target FROM state.workers WHERE left_at IS NULL ORDER BY worker_target"


async def both_are_there(stack: Stack, target: str) -> bool:
    """Whether the bridge and the worker of this target have signed on."""
    async with stack.pool.connection() as conn:
        return {row["worker_target"] for row in await conn.fetch(PRESENT)} == {"_bridge", target}


async def test_processes_that_end_as_they_should_are_not_listed_as_gone(stacks: Stacks) -> None:
    async with stacks.open() as stack:
        [target] = stack.settings.worker.worker_targets
        for _ in range(2):
            async with running_here(stack):
                await until(partial(both_are_there, stack, target), 25, "bridge and worker sign on")
            async with stack.pool.connection() as conn:
                assert await conn.fetch(PRESENT) == []
