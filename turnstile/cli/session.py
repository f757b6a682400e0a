"""A command's settings and output, and its connections to ledger, NATS or a gateway, opened on demand.

A command of a client asks where `--url` or `TURNSTILE_URL` says, else as every command where the settings say, else a
running `turnstile up`. It waits for a server that is away, at most `patience_seconds` of `[database]` or `[nats]`, and
prints which.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from turnstile.cli.errors import NoBridge, NotMigrated
from turnstile.cli.options import Options
from turnstile.cli.output import Output
from turnstile.embedded import Endpoints, find_data
from turnstile.processes import addresses
from turnstile.runtime.program import LATE_SECONDS
from turnstile.schema.amounts import amount
from turnstile.schema.errors import BadRequest, ConfigError, Refused, ServerUnavailable
from turnstile.schema.ids import ChannelId, ProjectId, token
from turnstile.settings import Settings

if TYPE_CHECKING:
    from pydantic import BaseModel

    from turnstile.ledger.pool import Pool
    from turnstile.schema.base import JsonObject, Reply
    from turnstile.schema.ledger_reads import ReadReply, ReadRequest
    from turnstile.schema.verbs import Verb
    from turnstile.sdk.client import BridgeClient
    from turnstile.sdk.turns import Client
    from turnstile.transport.connection import NatsConnection

T = TypeVar("T")
Answer = TypeVar("Answer", bound="Reply")
SENDER = "turnstile.cli"
"""What the ledger records as the sender of what a command asks for."""


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
        self.late_seconds = LATE_SECONDS
        """When after the signal a command that serves is canceled, if it has not ended."""
        self.announces_stop = True
        """Whether a command that serves prints that it stops."""
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

    @property
    def url(self) -> str | None:
        """The address that `--url` names, else `TURNSTILE_URL` unless `--data` names an `up`; None for neither.

        Raises `BadRequest` for both options.
        """
        if self.options.url and self.options.data:
            raise BadRequest("use either --url or --data: each says which servers to use")
        named = os.environ.get("TURNSTILE_URL") if self.options.data is None else None
        return self.options.url or named or None

    @property
    def gateway(self) -> str | None:
        """The gateway to ask, if that is one; None for NATS."""
        if (url := self.url) is None:
            return None
        from turnstile.sdk.turns import is_gateway  # noqa: PLC0415 -- as in `nats`

        return url if is_gateway(url) else None

    def nats_url(self) -> str:
        """The address of NATS; raises `ConfigError` if it is not known."""
        url = self.url
        if url is None or self.gateway is not None:
            return addresses.nats_url(self.settings, self.options.data)
        return url

    def endpoints(self) -> Endpoints:
        """The addresses of all three servers; raises `ConfigError` if one is not known."""
        return addresses.resolve_endpoints(self.settings, self.options.data)

    @asynccontextmanager
    async def ledger(self) -> AsyncGenerator["Pool"]:
        """The ledger, its version and schema checked; raises `ServerUnavailable` or `NotMigrated`."""
        from turnstile.ledger.migrate import pending  # noqa: PLC0415 -- needs the extra [server]
        from turnstile.ledger.pool import Pool  # noqa: PLC0415 -- as above

        patience = self.settings.database.patience_seconds
        url = addresses.database_url(self.settings, self.options.data)
        pool = Pool(url, size=2, name="turnstile cli", patience=patience)
        try:
            await patiently(pool.open, patience, self.out.remark)
            if missing := await pending(pool):
                raise NotMigrated(
                    f"the database at {pool.server} lacks {len(missing)} files of its schema, the first {missing[0]}"
                )
            yield pool
        finally:
            await pool.close()

    @asynccontextmanager
    async def nats(self) -> AsyncGenerator["NatsConnection"]:
        """A connection to NATS; raises `ServerUnavailable`, or `ConfigError` if it refuses the login."""
        from turnstile.transport.connection import connect  # noqa: PLC0415 -- a third of the start time of commands that only read

        patience = self.settings.nats.patience_seconds
        url = self.nats_url()
        try:
            async with asyncio.timeout(patience):
                conn = await connect(url, name="turnstile cli", on_wait=self.out.remark)
        except TimeoutError:
            hosts = ", ".join(addresses.without_password(part) for part in url.split(","))
            raise ServerUnavailable(f"no answer from NATS at {hosts} in {amount(patience)} s") from None
        try:
            yield conn
        finally:
            await conn.close()

    @asynccontextmanager
    async def bridge(self) -> AsyncGenerator["BridgeClient"]:
        """A client of the project's channel, over `nats`."""
        async with self.nats() as conn:
            yield self.bridge_on(conn)

    async def read(self, request: "ReadRequest") -> "ReadReply":
        """Rows of the project's ledger, from a bridge; raises `Refused`, `NoBridge` or `ServerUnavailable`."""
        async with self.bridge() as client:
            return await self.read_on(client, request)

    async def read_on(self, client: "BridgeClient", request: "ReadRequest") -> "ReadReply":
        """As `read`, on a client that is open."""
        from turnstile.schema import verbs  # noqa: PLC0415 -- as in `nats`

        return await self.patiently(lambda: client.call(verbs.LEDGER_READ, request))

    async def read_if_operator(self, client: "Client", request: "ReadRequest") -> "ReadReply | None":
        """As `read`; None through a gateway, and if NATS does not let this user read all channels of the project."""
        if self.gateway is not None:
            return None
        try:
            return await self.read_on(client.bridge, request)
        except Refused as error:
            if error.code != "forbidden":
                raise
            return None

    async def change(self, verb: "Verb[Any, Answer]", request: "BaseModel | JsonObject") -> "Answer":
        """Ask a bridge once, when one answers; raises as `read` does."""
        async with self.bridge() as client:
            await self.await_bridge(client)
            return await client.call(verb, request)

    async def listed(
        self, verb: "Verb[Any, Answer]", page: "Callable[[Answer], tuple[Sequence[T], str | None]]"
    ) -> list[T]:
        """All rows of a verb that lists agents, profiles or tools in pages; `page` has a reply's rows and `next`."""
        from turnstile.schema.wire.roster_requests import ListRequest  # noqa: PLC0415 -- as in `nats`

        rows: list[T] = []
        after: str | None = None
        async with self.bridge() as client:
            while True:
                request = ListRequest(after=after, limit=1000)
                more, after = page(await self.patiently(lambda body=request: client.call(verb, body)))
                rows += more
                if after is None:
                    return rows

    def bridge_on(self, conn: "NatsConnection") -> "BridgeClient":
        """A client of the project's channel on this connection."""
        from turnstile.sdk.client import BridgeClient  # noqa: PLC0415 -- as in `nats`

        return BridgeClient(conn, self.project, self.channel, SENDER)

    @asynccontextmanager
    async def client(self) -> AsyncGenerator["Client"]:
        """The client of Python programs: of the gateway if one is asked, else over `nats`.

        Raises `BadRequest` or `ConfigError` for options that make no sense together, or a token that is none.
        """
        from turnstile.sdk.nats_turns import NatsBackend  # noqa: PLC0415 -- as in `nats`
        from turnstile.sdk.turns import Client  # noqa: PLC0415 -- as in `nats`

        if (url := self.gateway) is None:
            async with self.nats() as conn:
                with self.printing_outages(conn):
                    yield Client.over(NatsBackend(conn, self.bridge_on(conn)))
            return
        async with self._over_http(url, self._token()) as client:
            yield client

    @asynccontextmanager
    async def web(self) -> AsyncGenerator["Client"]:
        """A client of the gateway that is named, else of that of the running `up`, with its own token.

        Raises as `client` does, and `ConfigError` where no gateway is known.
        """
        url, data = self.gateway, find_data(self.options.data)
        if url is not None:
            token = self._token()
        elif data is not None and (running := addresses.announced(data)) is not None and running.gateway_url:
            url, token = running.gateway_url, _read_token(data / "token")
        else:
            raise addresses.NothingRuns("files go through a gateway: set TURNSTILE_URL, or start `turnstile up` here")
        async with self._over_http(url, token) as client:
            yield client

    @asynccontextmanager
    async def _over_http(self, url: str, token: str) -> AsyncGenerator["Client"]:
        from turnstile.sdk.http_turns import open_http  # noqa: PLC0415 -- httpx is slow to import
        from turnstile.sdk.turns import Client  # noqa: PLC0415 -- as in `nats`

        if self.options.project is not None:
            raise BadRequest("a token belongs to one project: leave out --project when you use a gateway")
        channel = None if self.options.channel is None else self.channel
        backend = open_http(url, token, channel, on_wait=self.out.remark)
        try:
            yield Client.over(backend)
        finally:
            await backend.close()

    def _token(self) -> str:
        """The token of `--token-file`, else of the environment."""
        if (file := self.options.token_file) is not None:
            return _read_token(file)
        if secret := os.environ.get("TURNSTILE_TOKEN"):
            return secret
        raise ConfigError("a gateway needs a token: set TURNSTILE_TOKEN, or give --token-file FILE")

    @contextmanager
    def printing_outages(self, conn: "NatsConnection") -> Generator[None]:
        """Print a remark when the connection to NATS is lost, and when it is back."""

        def changed() -> None:
            state = "connected again" if conn.connected.is_set() else "gone; waiting for it"
            self.out.remark(f"NATS at {conn.shown}: {state}")

        forget = conn.listen(changed)
        try:
            yield
        finally:
            forget()

    async def await_bridge(self, client: "BridgeClient") -> None:
        """Wait until a bridge answers; raises `NoBridge` as `patiently` does."""
        await self.patiently(lambda: client.request("describe", {}))

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until a bridge or the gateway answers.

        Raises `NoBridge`, or the gateway's `ServerUnavailable`, after `[nats].patience_seconds`.
        """
        try:
            return await patiently(attempt, self.settings.nats.patience_seconds, self.out.remark)
        except ServerUnavailable as error:
            if self.gateway is not None:
                raise
            raise NoBridge(str(error)) from None


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


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
                on_wait(f"waiting up to {amount(patience)} s: {error}")
                printed = True
        await asyncio.sleep(0.5)
