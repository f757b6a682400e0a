"""A bridge whose own safety net does not look, and a net that looks when a test says so."""

from collections.abc import AsyncIterator

import pytest

from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.net import STILL, Net, net_of, nobody_serves
from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, new_tenant
from turnstile.processes.run import run_bridge, run_worker


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """A bridge in this process, whose own net does not look."""
    async with (
        stacks.open(STILL) as opened,
        running_here(opened, run_bridge),
    ):
        yield opened


@pytest.fixture
async def worker(stack: Stack) -> AsyncIterator[None]:
    """A worker in this process."""
    async with running_here(stack, run_worker):
        yield


@pytest.fixture
async def tenant(stack: Stack) -> AsyncIterator[Tenant]:
    """A project of this test alone, where nobody serves yet; what protocol §2 says holds when it ends."""
    await nobody_serves(stack)
    yield new_tenant(stack)
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


@pytest.fixture
def net(stack: Stack) -> Net:
    """The net of a bridge more."""
    return net_of(stack)
