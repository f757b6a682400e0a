"""HTTP to addresses that strangers name: public ones only, unless private ones are allowed.

A name is resolved at each request, all its addresses are checked, and the connection goes to one that was checked, so
a name that is rebound meanwhile leads nowhere else. Redirects are not followed, a proxy of the environment is not used,
and of an answer only the status is read.
"""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

import httpx

from turnstile.schema.errors import Refused

REFUSED: Final = "push_url_refused"
_RESOLVE_SECONDS: Final = 5.0
_NAT64: Final = "64:ff9b:"
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Destination:
    """A checked address."""

    scheme: str
    host: str
    port: int
    path: str
    address: str
    """The IP address to connect to."""

    @property
    def named(self) -> str:
        """What the header Host says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


async def destination(url: str, *, private: bool) -> Destination:
    """Where a URL leads; raises `Refused` (push_url_refused) for what is no URL, or leads where it must not."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname or "", parts.port
    except ValueError:
        raise Refused(REFUSED, "url: it is no URL") from None
    if scheme not in ("https", "http") or not host or parts.username or parts.password or parts.fragment:
        raise Refused(REFUSED, "url: https://HOST/PATH is needed, without user, password or fragment")
    if scheme == "http" and not private:
        raise Refused(REFUSED, "url: notifications go over https")
    port = port or _PORTS[scheme]
    found = await _addresses(host, port)
    if not private and not all(is_public(each) for each in found):
        raise Refused(REFUSED, "url: its host has an address that is not public")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(scheme, host, port, path, found[0])


async def post(
    client: httpx.AsyncClient, to: Destination, body: bytes, headers: Mapping[str, str], *, seconds: float
) -> int:
    """Send a body to a checked address; returns the status of the answer.

    Raises `TimeoutError` and `httpx.HTTPError`, `ValueError` for a path that cannot be sent.
    """
    address = f"[{to.address}]" if ":" in to.address else to.address
    request = client.build_request(
        "POST",
        f"{to.scheme}://{address}:{to.port}{to.path}",
        content=body,
        headers={**headers, "host": to.named},
        extensions={"sni_hostname": to.host},
    )
    async with asyncio.timeout(seconds):
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            return response.status_code
        finally:
            await response.aclose()


def outbound_client(seconds: float) -> httpx.AsyncClient:
    """A client for `post`; it keeps no connection, since the next may be for another host at the same address."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=seconds, limits=limits)


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet, also within IPv6."""
    found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and str(found).startswith(_NAT64):
            inner = IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast


async def _addresses(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        raise Refused(REFUSED, "url: its host has no address now") from None
    return [str(each[4][0]) for each in found]
