"""A stack for the tests of turns that a program asks for."""

from collections.abc import AsyncIterator

import pytest

from tests.support.databases import Databases
from tests.support.processes.stack import open_stack, running_here
from tests.support.tenants import Tenant, new_tenant
from turnstile.embedded import Endpoints
from turnstile.schema.ids import AgentId


@pytest.fixture(scope="package")
async def tenant(
    servers: Endpoints, databases: Databases, migrated: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Tenant]:
    """A project with an agent `alice`, who says what she is asked to, and worker and bridge in this process."""
    name = await databases.create(migrated)
    endpoints = servers.model_copy(update={"database_url": databases.url(name)})
    async with open_stack(endpoints, tmp_path_factory.mktemp("sdk")) as stack, running_here(stack):
        tenant = new_tenant(stack)
        await tenant.agent("player")
        await tenant.agent("submits", AgentId("bob"))
        yield tenant
    await databases.drop(name)
