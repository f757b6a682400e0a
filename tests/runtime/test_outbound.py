"""Names that strangers wrote: resolved apart from what else a process looks up, and each project by itself.

Of addresses those are of the public internet that are given out for it, and no others.
"""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address, ip_network

import pytest

from turnstile.runtime.outbound import Names, destination, is_public
from turnstile.schema.errors import Refused


class NameServer:
    """Answers names at once, and `slow` ones when it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host.startswith("slow"):
            self.go_on.wait(30)
        if host == "nowhere.example":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return ["10.0.0.7"] if host == "inside.example" else ["93.184.216.34"]


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    """A name server whose slow names are answered at the end."""
    found = NameServer()
    yield found
    found.go_on.set()


async def test_slow_names_of_one_project_hold_up_nobody_else(server: NameServer) -> None:
    names = Names(server)
    slow = [asyncio.create_task(names.addresses("red", f"slow-{n}.example", 443)) for n in range(40)]
    await asyncio.sleep(0)
    began = time.monotonic()
    assert await names.addresses("blue", "fast.example", 443) == ["93.184.216.34"]
    loop = asyncio.get_running_loop()
    assert await loop.getaddrinfo("127.0.0.1", 443)  # as the clients of models look up theirs
    assert time.monotonic() - began < 2
    assert len([each for each in server.asked if each.startswith("slow")]) == 4
    server.go_on.set()
    assert await asyncio.gather(*slow) == [["93.184.216.34"]] * 40


async def test_a_name_that_is_waited_for_no_more_still_counts(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.runtime.outbound._RESOLVE_SECONDS", 0.05)
    names = Names(server)
    for _ in range(3):
        assert await asyncio.gather(*(names.addresses("red", f"slow-{n}.example", 443) for n in range(4))) == [()] * 4
    assert len(server.asked) == 4
    assert await names.addresses("blue", "fast.example", 443)


async def test_what_is_inside_is_not_told_from_what_is_nowhere(server: NameServer) -> None:
    names, told = Names(server), set[str]()
    for host in ("inside.example", "nowhere.example", "127.0.0.1", "é" * 80 + ".example"):
        resolver = names if host.startswith(("inside", "nowhere")) else Names()
        with pytest.raises(Refused) as refused:
            await destination(f"https://{host}/hook", resolver, "red", private=False)
        told.add(f"{refused.value.code}: {refused.value}")
    assert told == {"push_url_refused: url: its host has no public address now"}
    found = await destination("https://outside.example/hook", names, "red", private=False)
    assert (found.host, found.address) == ("outside.example", "93.184.216.34")


SPECIAL = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
    *("224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32", "::/8", "64:ff9b:1::/48", "100::/64", "2001:db8::/32"),
    *("2001:2::/48", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "4000::/3"),
)


@pytest.mark.parametrize("network", SPECIAL)
def test_what_is_not_given_out_is_not_public(network: str) -> None:
    found = ip_network(network)
    for address in (found[0], found[1] if found.num_addresses > 1 else found[0], found[-1]):
        assert not is_public(str(address))
        if address.version == 4:  # within IPv6 it is the same
            for inside in (f"::ffff:{address}", f"64:ff9b::{address}", f"::{address}"):
                assert not is_public(str(ip_address(inside))), inside


@pytest.mark.parametrize("address", ["1.1.1.1", "9.255.255.255", "11.0.0.0", "100.128.0.1", "223.255.255.255"])
def test_what_is_given_out_is(address: str) -> None:
    assert is_public(address)
    assert is_public(f"::ffff:{address}")
    assert is_public(f"64:ff9b::{address}")
    assert is_public("2606:4700::1111")
