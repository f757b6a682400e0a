"""HTTP to addresses that strangers name: public ones only, unless private ones are allowed.

A name is resolved at each request, all its addresses are checked, and the connection goes to one that was checked, so
a name that is rebound meanwhile leads nowhere else. Redirects are not followed, a proxy of the environment is not used,
and of an answer only the status is read. The error does not say whether a name has no address or a private one:
whoever may name receivers must not learn what there is in our network.
"""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

import httpx

from turnstile.schema.errors import Refused

import_module("anyio._backends._asyncio")  # at the first request it would hold the loop for 70 ms
REFUSED: Final = "push_url_refused"
_RESOLVE_SECONDS: Final = 5.0
_MOST, _SHARE = 64, 4
_PUBLIC_V6: Final = ip_network("2000::/3")
_SPECIAL_V6: Final = tuple(
    ip_network(net) for net in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
_SPECIAL_V4: Final = tuple(
    ip_network(net)
    for net in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
        *("192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
    )
)
"""IANA's special-purpose blocks, multicast and what is reserved: all else of IPv4 is the public internet's."""
_NAT64: Final = ip_network("64:ff9b::/96")
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


Resolve = Callable[[str, int], Sequence[str]]
"""Gives the addresses of a name, and blocks until it has them; raises `OSError`, `UnicodeError`."""


def _resolve(host: str, port: int) -> Sequence[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Names:
    """Resolves names that strangers wrote, in threads of its own: a name may take its server half a minute.

    The shared threads of the loop are those by which model servers are found. At most `_SHARE` names of one project are
    resolved at a time, and `_MOST` of all, also those that are waited for no more; further ones of it wait. The threads
    are daemons, so that no name server keeps a process from its end.
    """

    def __init__(self, resolve: Resolve = _resolve) -> None:
        self._resolve = resolve
        self._busy: Counter[str] = Counter()
        self._freed = asyncio.Condition()
        self._waking: set[asyncio.Task[None]] = set()

    async def addresses(self, project: str, host: str, port: int) -> Sequence[str]:
        """The addresses of a name; none if it has none, or if they are not found in time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                async with self._freed:
                    await self._freed.wait_for(lambda: self._has_room(project))
                    self._busy[project] += 1
                addresses: asyncio.Future[Sequence[str]] = loop.create_future()
                look = partial(self._look, addresses, project, host, port)
                threading.Thread(target=look, name="turnstile-name", daemon=True).start()
                return await addresses
        except TimeoutError:
            return ()

    def _has_room(self, project: str) -> bool:
        return self._busy[project] < _SHARE and self._busy.total() < _MOST

    def _look(self, future: "asyncio.Future[Sequence[str]]", project: str, host: str, port: int) -> None:
        """Resolve a name, in its thread."""
        addresses: Sequence[str] = ()
        with suppress(OSError, UnicodeError, ValueError):
            addresses = self._resolve(host, port)
        with suppress(RuntimeError):  # the loop is closed
            future.get_loop().call_soon_threadsafe(self._done, future, project, addresses)

    def _done(self, future: "asyncio.Future[Sequence[str]]", project: str, addresses: Sequence[str]) -> None:
        if not future.done():
            future.set_result(addresses)
        self._busy[project] -= 1
        if not self._busy[project]:
            del self._busy[project]
        waking = asyncio.create_task(self._wake())
        self._waking.add(waking)
        waking.add_done_callback(self._waking.discard)

    async def _wake(self) -> None:
        async with self._freed:
            self._freed.notify_all()


async def destination(url: str, names: Names, project: str, *, private: bool) -> Destination:
    """Where a URL leads; raises `Refused` (push_url_refused) for what is no URL, or leads where it must not.

    Resolving its name counts towards the project's share.
    """
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
    addresses = await names.addresses(project, host, port)
    if not addresses or (not private and not all(map(is_public, addresses))):
        raise Refused(REFUSED, f"url: its host has no {'' if private else 'public '}address now")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(scheme, host, port, path, addresses[0])


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
    ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        # Of IPv6 only 2000::/3 is given out for the public internet.
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in _NAT64:
            inner = IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        return ip in _PUBLIC_V6 and not any(ip in network for network in _SPECIAL_V6)
    return not any(ip in network for network in _SPECIAL_V4)
