"""Which addresses are of the public internet: those that are given out for it, and no others."""

from ipaddress import ip_address, ip_network

import pytest

from turnstile.runtime.outbound import is_public

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
