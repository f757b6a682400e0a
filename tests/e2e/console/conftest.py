"""One stack, one gateway and one browser for all tests of the console; a project of its own for each that acts."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser

from lab.pictures.camera import CHROMIUM
from lab.pictures.plays import PRICES
from lab.pictures.seed import Shop, close_shop, open_shop, this_afternoon, this_morning, two_weeks
from tests.support.console.visiting import visiting
from tests.support.console.windows import Window, launched, window
from tests.support.gateway import serving, token_of
from tests.support.processes.shared_stack import SharedStack
from tests.support.processes.stack import QUICK, SCRIPTS, Config, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, new_tenant
from turnstile.schema.access import GatewayRole

PACE = 0.02
EVERYDAY = 16
PRICED: Config = {
    f'model.prices."{name}"': {
        "input_per_million": float(price.input_per_million),
        "output_per_million": float(price.output_per_million),
    }
    for name, price in PRICES.items()
}

Windows = Callable[..., AbstractAsyncContextManager[Window]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a browser there is nothing to see."""
    if CHROMIUM is None:
        here = Path(__file__).parent
        lacking = pytest.mark.skip(reason="no chromium here: apt-get install chromium")
        for item in items:
            if here in item.path.parents and "windows" in getattr(item, "fixturenames", ()):
                item.add_marker(lacking)


@pytest.fixture(scope="package")
async def stack(stacks: Stacks, shared_stack: SharedStack) -> AsyncIterator[Stack]:
    """A database and a worker target of the console's tests alone, with the models of the demo project."""
    await shared_stack.close()  # a package's fixtures come before a module's
    async with stacks.open({**QUICK, **PRICED}, (*SCRIPTS, Path(__file__).with_name("quick_models.py"))) as opened:
        yield opened


@pytest.fixture(scope="package")
async def here(stack: Stack) -> AsyncIterator[Stack]:
    """The stack, with worker and bridge in this process."""
    async with running_here(stack):
        yield stack


@pytest.fixture(scope="package")
async def url(here: Stack) -> AsyncIterator[str]:
    """Where the gateway serves."""
    async with serving(here, requests_per_second=0.0) as address:
        yield address


@pytest.fixture(scope="package")
async def browser() -> AsyncIterator[Browser]:
    """Chromium without a window."""
    async with launched() as opened:
        yield opened


@pytest.fixture(scope="package")
def windows(browser: Browser, url: str) -> Windows:
    """Opens windows: `windows(token, scheme=…, size=…, script=…)`."""
    return partial(window, browser, url)


@pytest.fixture
async def operator(url: str, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    """An operator of the test's project, signed in, without a browser."""
    async with visiting(url, await token_of(tenant.stack, tenant.project)) as made:
        yield made


@pytest.fixture
async def desk(windows: Windows, tenant: Tenant) -> AsyncIterator[Window]:
    """A window of an operator of the test's project."""
    async with windows(await token_of(tenant.stack, tenant.project)) as opened:
        yield opened


@pytest.fixture
async def people(windows: Windows, tenant: Tenant) -> AsyncIterator["Seats"]:
    """Windows of as many people of the test's project as it wants."""
    async with AsyncExitStack() as stack:
        yield Seats(windows, tenant, stack)


class Seats:
    """Opens windows of people, each with a token of its own; they are closed with the test."""

    def __init__(self, windows: Windows, tenant: Tenant, stack: AsyncExitStack) -> None:
        self.windows = windows
        self.tenant = tenant
        self._stack = stack

    async def token(self, role: GatewayRole = GatewayRole.OPERATOR, channel: str | None = None) -> str:
        """A token of somebody new."""
        return await token_of(self.tenant.stack, self.tenant.project, role, channel)

    async def seat(self, role: GatewayRole = GatewayRole.OPERATOR, *, channel: str | None = None, **how: Any) -> Window:
        """A window of somebody new with this role."""
        return await self._stack.enter_async_context(self.windows(await self.token(role, channel), **how))


@pytest.fixture(scope="package")
async def shop(here: Stack, url: str) -> AsyncGenerator[Shop]:
    """The demo project in the middle of its afternoon, for tests that only look."""
    made = new_tenant(here)
    [target] = here.settings.worker.worker_targets
    nats = here.endpoints.nats_url
    async with open_shop(made.pool, made.client, url, nats, made.project, target, pace=PACE) as opened:
        await two_weeks(opened, EVERYDAY)
        await this_morning(opened)
        await this_afternoon(opened)
        yield opened
        await close_shop(opened)
