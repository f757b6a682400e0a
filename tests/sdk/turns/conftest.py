"""A stack and a gateway for the tests of turns that a program asks for: every test asks both ways, NATS and HTTP."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest

from lab.support.nats_server import NatsServer
from tests.support.databases import Databases
from tests.support.delegation import staff
from tests.support.gateway import serving, token_of
from tests.support.processes.stack import open_stack, running_here
from tests.support.tenants import Tenant, new_tenant
from turnstile import Client, SyncClient
from turnstile.embedded import Endpoints
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import AgentId, ProjectId


@dataclass(frozen=True)
class Way:
    """A way to the agents of a project."""

    address: str
    project: ProjectId | None
    """None for a gateway: a token is of one project."""
    token: str | None = field(default=None, repr=False)

    @property
    def over_http(self) -> bool:
        """Whether it is a gateway."""
        return self.token is not None

    def client(self, address: str | None = None, *, token: str | None = None, channel: str | None = None) -> Client:
        """A client, not connected; of another address, with another token, or of a channel, if that is given."""
        given = address or self.address, token or self.token
        return Client(given[0], project=self.project, token=given[1], channel=channel)

    def sync_client(self) -> SyncClient:
        """The same without an event loop, not connected."""
        return SyncClient(self.address, project=self.project, token=self.token)


@pytest.fixture(scope="package")
def nats() -> Iterator[NatsServer]:
    """A NATS of the package alone, which its tests may kill and start."""
    server = NatsServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="package")
async def tenant(
    servers: Endpoints,
    databases: Databases,
    migrated: str,
    nats: NatsServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Tenant]:
    """A project with an agent `alice`, who says what she is asked to, and a chief, who may ask others.

    Worker and bridge are in this process.
    """
    name = await databases.create(migrated)
    endpoints = servers.model_copy(update={"database_url": databases.url(name), "nats_url": nats.url})
    async with open_stack(endpoints, tmp_path_factory.mktemp("sdk")) as stack, running_here(stack):
        tenant = new_tenant(stack)
        await tenant.agent("player", models=["scripted/*"])
        await tenant.agent("submits", AgentId("bob"), models=["scripted/*"])
        await staff(tenant)
        await tenant.profile("chatty", "chat", instances=True)
        yield tenant
    await databases.drop(name)


@pytest.fixture(scope="package")
async def gateway_url(tenant: Tenant) -> AsyncIterator[str]:
    """Where the package's gateway serves."""
    async with serving(tenant.stack) as url:
        yield url


@pytest.fixture(scope="package")
async def token(tenant: Tenant) -> str:
    """A token that may ask, of the project."""
    return await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT)


@pytest.fixture(params=["nats", "http"])
def way(request: pytest.FixtureRequest, tenant: Tenant, gateway_url: str, token: str) -> Way:
    """Both ways, one after the other."""
    if request.param == "nats":
        return Way(tenant.stack.endpoints.nats_url, tenant.project)
    return Way(gateway_url, None, token)


@pytest.fixture
async def client(way: Way) -> AsyncIterator[Client]:
    """A client of the project."""
    async with way.client() as client:
        yield client
