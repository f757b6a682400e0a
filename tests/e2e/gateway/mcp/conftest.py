"""The official client of MCP, in both generations of the protocol, against the gateway of `tests/e2e/gateway`."""

import os

import pytest

from tests.e2e.gateway.mcp.official import GENERATIONS, Door
from tests.support.gateway import token_of
from tests.support.tenants import Tenant

collect_ignore = [] if "MCP_CONFORMANCE" in os.environ else ["test_conformance.py"]


@pytest.fixture
async def operator(url: str, tenant: Tenant) -> Door:
    """The gateway, for an operator of the test's project."""
    return Door(url, await token_of(tenant.stack, tenant.project))


@pytest.fixture(params=GENERATIONS)
def door(operator: Door, request: pytest.FixtureRequest) -> Door:
    """The same in each generation."""
    return operator.of(request.param)
