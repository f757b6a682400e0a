"""The servers of `deploy/`, for all tests here."""

from collections.abc import Iterator

import pytest

from tests.roles.servers import ROLES, GuardedNats, login_url, password, run_init
from turnstile.embedded import Endpoints
from turnstile.ledger.grants import grant
from turnstile.ledger.migrate import migrate
from turnstile.ledger.pool import Pool

BRIDGE, WORKER, GATEWAY = "turnstile_bridge", "turnstile_worker", "turnstile_gateway"


@pytest.fixture(scope="package")
def guarded() -> Iterator[GuardedNats]:
    """NATS with its users."""
    server = GuardedNats()
    server.begin()
    yield server
    server.remove()


@pytest.fixture(scope="package")
def logins(servers: Endpoints) -> str:
    """The address of the session's server, on which `init.sh` has run twice."""
    for _ in range(2):
        run_init(servers.database_url, {role: password(role) for role in ROLES})
    return servers.database_url


@pytest.fixture(scope="package")
async def granted(logins: str) -> str:
    """The name of the database that `init.sh` made, migrated by its owner, with rights granted, both twice."""
    pool = Pool(login_url(logins, "migrate"), size=1)
    for _ in range(2):
        await migrate(pool)
        roles = await grant(pool, bridge_role=BRIDGE, worker_role=WORKER, gateway_role=GATEWAY)
        assert roles == [BRIDGE, GATEWAY, WORKER]
    await pool.close()
    return "turnstile"
