"""The whole of Turnstile on real servers: in this process for what must be quick, as processes for what gets killed."""

from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from tests.support.databases import Databases
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery, shared_hatchery
from tests.support.processes.process import Processes, processes_of
from tests.support.processes.stack import Stack
from tests.support.processes.stacks import here, stack, stacks, usual
from tests.support.tenants import Tenant, new_tenant

__all__ = ["here", "stack", "stacks", "usual"]

LOGS: pytest.StashKey[list[Path]] = pytest.StashKey()


@pytest.fixture
async def tenant(here: Stack, databases: Databases) -> AsyncIterator[Tenant]:
    """A project of this test alone; what protocol §2 says holds when it ends."""
    yield new_tenant(here)
    await assert_invariants(databases.keeper(here.endpoints.database_url.rpartition("/")[2]))


@pytest.fixture(scope="session")
async def hatching() -> Hatchery:
    """Where the lives of processes begin at once."""
    return await shared_hatchery.get()


@pytest.fixture(scope="module")
async def module_processes(
    stack: Stack, hatching: Hatchery, request: pytest.FixtureRequest
) -> AsyncIterator[Processes]:
    """Worker and bridge as processes, which the tests of this module kill and start."""
    async with processes_of(stack.config, hatching) as both:
        request.node.stash[LOGS] = [both.worker.log, both.bridge.log]
        yield both


@pytest.fixture
async def processes(module_processes: Processes) -> Processes:
    """Both of them running."""
    await module_processes.ensure()
    return module_processes


@pytest.fixture
def apart(processes: Processes, stack: Stack) -> Tenant:
    """A project of this test alone, served by `processes`."""
    return new_tenant(stack)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the processes' logs where a test failed."""
    report = yield
    if report.failed:
        logs = [log for node in item.listchain() if LOGS in node.stash for log in node.stash[LOGS]]
        report.sections += [(str(log), log.read_text()[-4000:]) for log in logs if log.exists()]
    return report
