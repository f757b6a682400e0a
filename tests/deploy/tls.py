"""Certificates of an authority of our own, and TLS in front of servers whose wheels have none."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

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
