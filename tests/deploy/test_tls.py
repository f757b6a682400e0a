"""Turnstile reaches all three servers over TLS, checks who they are, and never falls back to none."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.support.nats_server import NatsServer
from tests.support.databases import Databases
from tests.support.processes.nats_server import eventually
from turnstile.doctor.examine import examine
from turnstile.embedded import Endpoints
from turnstile.ledger.pool import Pool
from turnstile.processes.addresses import resolve_endpoints
from turnstile.processes.migration import migrate_all
from turnstile.processes.run import run_both
from turnstile.schema.errors import ConfigError, ServerUnavailable
from turnstile.settings import Settings
from turnstile.settings.model import DatabaseSettings, NatsSettings, TemporalSettings
from turnstile.temporal.connect import connect_engine
from turnstile.transport.connection import connect

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n"


@dataclass(frozen=True)
class Certificates:
    """Files of an authority, and of a server and a client that it vouches for."""

    home: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate."""
        return self.home / "ca.pem"

    def cert(self, who: str) -> Path:
        """A certificate."""
        return self.home / f"{who}.pem"

    def key(self, who: str) -> Path:
        """Its key."""
        return self.home / f"{who}.key"

    def server_context(self) -> ssl.SSLContext:
        """A server's, that asks clients for a certificate of the same authority where they have one."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca))
        context.load_cert_chain(self.cert("server"), self.key("server"))
        return context


def make_certificates(home: Path) -> Certificates:
    """New ones, by openssl."""
    made = Certificates(home)
    (home / "names").write_text(_NAMES)

    def openssl(*words: str | Path) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)

    authority = ("-addext", "keyUsage=critical,keyCertSign")
    openssl(
        "req", "-x509", *_KEY, "-days", "2", "-subj", "/CN=ca", *authority, "-keyout", made.key("ca"), "-out", made.ca
    )
    for who in ("server", "client"):
        request = home / f"{who}.csr"
        openssl("req", *_KEY, "-subj", f"/CN={who}", "-keyout", made.key(who), "-out", request)
        signed = ("-CA", made.ca, "-CAkey", made.key("ca"), "-CAcreateserial", "-extfile", home / "names")
        openssl("x509", "-req", "-in", request, *signed, "-days", "2", "-out", made.cert(who))
    return made


@asynccontextmanager
async def tls_before(address: str, certificates: Certificates, *, postgres: bool = False) -> AsyncGenerator[str]:
    """A TLS port before the server at host:port; what goes through it is the server's own protocol.

    Before PostgreSQL it answers the request for TLS, as that protocol begins; elsewhere TLS comes first, and a client's
    certificate is asked for.
    """
    context = certificates.server_context()
    if not postgres:
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    handling: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            handling.add(task)
            task.add_done_callback(handling.discard)
        with suppress(OSError, asyncio.IncompleteReadError):
            if postgres:
                await reader.readexactly(8)
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(context)
            behind, before = await asyncio.open_connection(host, int(port))
            await asyncio.gather(_pipe(reader, before), _pipe(behind, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=None if postgres else context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tuple(handling):
            task.cancel()
        await asyncio.gather(*handling, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificates, and is not here"
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Ours."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of another authority of the same name."""
    return make_certificates(tmp_path_factory.mktemp("strangers"))


@dataclass(frozen=True)
class Encrypted:
    """Three servers behind TLS, and what proves them and us."""

    database: str
    nats: str
    temporal: str

    def settings(self, trusted: Certificates) -> Settings:
        """Of a client that trusts this authority."""
        cert, key = trusted.cert("client"), trusted.key("client")
        return Settings(
            database=DatabaseSettings(url=f"{self.database}?sslmode=verify-full&sslrootcert={trusted.ca}"),
            nats=NatsSettings(servers=[f"{self.nats}?tls_ca={trusted.ca}&tls_cert={cert}&tls_key={key}"]),
            temporal=TemporalSettings(
                address=self.temporal,
                tls=True,
                tls_ca_file=str(trusted.ca),
                tls_cert_file=str(cert),
                tls_key_file=str(key),
            ),
        )


@pytest.fixture(scope="module")
def secure_nats(certificates: Certificates) -> Iterator[NatsServer]:
    """It asks clients for a certificate."""
    server = NatsServer()
    files = {
        "cert_file": certificates.cert("server"),
        "key_file": certificates.key("server"),
        "ca_file": certificates.ca,
    }
    lines = "\n".join(f'{name}: "{path}"' for name, path in files.items())
    server.start("-c", server.write_config(f"tls {{\n{lines}\nverify: true\n}}"))
    yield server
    server.remove()


@pytest.fixture(scope="module")
async def encrypted(
    servers: Endpoints, databases: Databases, certificates: Certificates, secure_nats: NatsServer
) -> AsyncIterator[Encrypted]:
    """An empty database, and the servers."""
    name = await databases.create()
    login, _, rest = databases.url(name).rpartition("@")
    address, _, path = rest.partition("/")
    async with (
        tls_before(address, certificates, postgres=True) as postgres,
        tls_before(servers.temporal_address, certificates) as temporal,
    ):
        yield Encrypted(f"{login}@{postgres}/{path}", secure_nats.url.replace("nats:", "tls:"), temporal)
    await databases.drop(name)


async def test_everything_runs_over_tls(encrypted: Encrypted, certificates: Certificates) -> None:
    settings = encrypted.settings(certificates)
    endpoints = resolve_endpoints(settings, None)
    assert (await migrate_all(settings, endpoints)).schema_files
    checks = {check.name: check.status for check in await examine(settings, None, ())}
    assert [checks[name] for name in ("PostgreSQL", "NATS", "Temporal")] == ["ok", "ok", "ok"]
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(run_both(settings, endpoints, stop, ready=ready.set))
    async with asyncio.timeout(25):
        await asyncio.wait({running, asyncio.create_task(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert ready.is_set(), running.exception()
    stop.set()
    await running


async def test_servers_of_another_authority_are_refused(encrypted: Encrypted, strangers: Certificates) -> None:
    settings = encrypted.settings(strangers)
    endpoints = resolve_endpoints(settings, None)
    with pytest.raises(ServerUnavailable, match="certificate verify failed"):
        await Pool(endpoints.database_url, patience=0.1).open()
    with pytest.raises(RuntimeError, match=r"[Cc]ert|transport"):
        await connect_engine(settings.temporal, endpoints)
    assert "certificate verify failed" in await why_it_waits(endpoints.nats_url)


async def test_tls_is_never_left_out_where_a_nats_server_offers_none() -> None:
    plain = NatsServer()
    plain.start()
    try:
        assert "offers no TLS" in await why_it_waits(plain.url.replace("nats://", "tls://me:secret@"))
    finally:
        plain.remove()


async def why_it_waits(url: str) -> str:
    """What a connection that cannot be made says."""
    said: list[str] = []
    waiting = asyncio.create_task(connect(url, name="test", on_wait=said.append))
    await eventually(lambda: said)
    waiting.cancel()
    await asyncio.wait({waiting})
    return said[0]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nats://h:1?tls_ca=/x", "tls_ca needs tls:// servers"),
        ("tls://h:1?tls_ca=/no/such", r"cannot be read \(.*No such file"),
        ("tls://h:1?tls_key=/x", "tls_key needs tls_cert"),
        ("tls://h:1?tls_file=/x", "no option 'tls_file'"),
        ("tls://h:1,nats://h:2", "either all servers are tls:// or none"),
    ],
)
async def test_an_address_that_makes_no_sense_is_told_of(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        await connect(url, name="test")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"tls": True}, "tls needs an address"),
        ({"address": "h:1", "api_key_file": "/x"}, "api_key_file needs tls = true"),
        ({"address": "h:1", "tls": True, "tls_key_file": "/x"}, "go together"),
    ],
)
def test_settings_that_make_no_sense_are_told_of(values: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TemporalSettings.model_validate(values)


async def test_a_file_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    settings = Settings(
        database=DatabaseSettings(url="postgresql://h/d"),
        nats=NatsSettings(servers=["nats://h"]),
        temporal=TemporalSettings(address="127.0.0.1:1", tls=True, api_key_file=str(tmp_path / "key")),
    )
    with pytest.raises(ConfigError, match=r"\[temporal\]\.api_key_file: .*key cannot be read"):
        await connect_engine(settings.temporal, resolve_endpoints(settings, None))
