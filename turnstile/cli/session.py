"""A command's settings and output, and its connections to ledger and NATS, opened on demand.

A command waits for a server that is away, at most `patience_seconds` of `[database]` or `[nats]`, and prints which.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from turnstile.cli.errors import NoBridge, NotMigrated
from turnstile.cli.options import Options
from turnstile.cli.output import Output
from turnstile.embedded import Endpoints
from turnstile.processes import addresses
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import ChannelId, ProjectId, token
from turnstile.settings import Settings

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool
    from turnstile.sdk.client import BridgeClient
    from turnstile.transport.connection import NatsConnection

T = TypeVar("T")
SENDER = "turnstile.cli"
HEADERS = {"CG-Sender": SENDER}
"""The headers of every request of a command."""


class Session:
    """One run of one command."""

    def __init__(self, settings: Settings, options: Options, out: Output) -> None:
        self.settings = settings
        self.options = options
        self.out = out
        self.stop = asyncio.Event()
        """Set by the first signal."""
        self.on_interrupt: Callable[[], object] | None = None
        """Called for Ctrl-C instead of ending the command, while it is set."""
        self.exit_code = 0
        """The exit code of a command that ends without an error."""

    @property
    def project(self) -> ProjectId:
        """The project of `--project`, else of the settings; raises `BadRequest` if it is no token."""
        return ProjectId(token(self.options.project or self.settings.protocol.default_project, "--project"))

    @property
    def channel(self) -> ChannelId:
        """The channel of `--channel`, else of the settings; raises `BadRequest` if it is no token."""
        return ChannelId(token(self.options.channel or self.settings.protocol.default_channel, "--channel"))

    def endpoints(self) -> Endpoints:
        """The addresses of all three servers; raises `ConfigError` if one is not known."""
        return addresses.resolve_endpoints(self.settings, self.options.data)

    @asynccontextmanager
    async def ledger(self) -> AsyncGenerator["Pool"]:
        """The ledger, its version and migrations checked; raises `ServerUnavailable` or `NotMigrated`."""
        from turnstile.ledger.migrate import pending  # noqa: PLC0415 -- needs the extra [server]
        from turnstile.ledger.pool import Pool  # noqa: PLC0415 -- as above

        patience = self.settings.database.patience_seconds
        url = addresses.database_url(self.settings, self.options.data)
        pool = Pool(url, size=2, name="turnstile cli", patience=patience)
        try:
            await patiently(pool.open, patience, self.out.remark)
            if missing := await pending(pool):
                raise NotMigrated(
                    f"the database at {pool.server} lacks {len(missing)} migrations, the first {missing[0]}"
                )
            yield pool
        finally:
            await pool.close()

    @asynccontextmanager
    async def ledger_if_installed(self) -> AsyncGenerator["Pool | None"]:
        """As `ledger`, or None if its driver is not installed; then the caller asks the bridge."""
        if find_spec("asyncpg") is None:
            yield None
            return
        async with self.ledger() as pool:
            yield pool

    @asynccontextmanager
    async def nats(self) -> AsyncGenerator["NatsConnection"]:
        """A connection to NATS; raises `ServerUnavailable`, or `ConfigError` if it refuses the login."""
        from turnstile.transport.connection import connect  # noqa: PLC0415 -- a third of the start time of commands that only read

        patience = self.settings.nats.patience_seconds
        url = addresses.nats_url(self.settings, self.options.data)
        try:
            async with asyncio.timeout(patience):
                conn = await connect(url, name="turnstile cli", on_wait=self.out.remark)
        except TimeoutError:
            shown = ", ".join(addresses.without_password(each) for each in url.split(","))
            raise ServerUnavailable(f"no answer from NATS at {shown} in {patience:g} s") from None
        try:
            yield conn
        finally:
            await conn.close()

    @asynccontextmanager
    async def bridge(self) -> AsyncGenerator["BridgeClient"]:
        """A client of the project's channel, over `nats`."""
        from turnstile.sdk.client import BridgeClient  # noqa: PLC0415 -- as in `nats`

        project, channel = self.project, self.channel
        async with self.nats() as conn:
            yield BridgeClient(conn, project, channel)

    async def await_bridge(self, client: "BridgeClient") -> None:
        """Wait until a bridge answers; raises `NoBridge` as `patiently` does."""
        await self.patiently(lambda: client.request("describe", {}))

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until a bridge answers; raises `NoBridge` after `[nats].patience_seconds`."""
        try:
            return await patiently(attempt, self.settings.nats.patience_seconds, self.out.remark)
        except ServerUnavailable as error:
            raise NoBridge(str(error)) from None


async def patiently(attempt: Callable[[], Awaitable[T]], patience: float, on_wait: Callable[[str], None]) -> T:
    """Repeat `attempt` until the server answers; raises its `ServerUnavailable` after `patience` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    printed = False
    while True:
        try:
            return await attempt()
        except ServerUnavailable as error:
            if loop.time() >= deadline:
                raise
            if not printed:
                on_wait(f"waiting up to {patience:g} s: {error}")
                printed = True
        await asyncio.sleep(0.5)
