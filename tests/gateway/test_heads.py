"""Heads that a proxy may have read another way are refused, however they come; and who asks behind proxies."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from turnstile.gateway.http.guard import client_address
from turnstile.gateway.server import is_ambiguous

GET = b"GET / HTTP/1.1\r\nhost: here\r\n"
AMBIGUOUS = (
    GET + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
    GET + b"Transfer-Encoding: chunked\r\nContent-Length : 3\r\n\r\n",
    GET + b"content-length: 3\r\ncontent-length: 4\r\n\r\n",
    GET + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n",
    GET + b"x: a\r\n folded\r\n\r\n",
    GET + b"x: a\r\n\tfolded\r\n\r\n",
    GET + b"x: a\ny: b\r\n\r\n",
    b"GET / HTTP/1.1\nhost: here\n\n",
    GET + b"x: a\rb\r\n\r\n",
    GET + b"x: " + b"a" * 20_000 + b"\r\n\r\n",
    GET + b"".join(b"x%d: %s\r\n" % (n, b"a" * 1000) for n in range(40)) + b"\r\n",
)


@pytest.mark.parametrize("head", AMBIGUOUS)
def test_an_ambiguous_head_is_refused(head: bytes) -> None:
    assert is_ambiguous(head)
    assert is_ambiguous(b"\r\n" + head)
    assert is_ambiguous(head + b"{}")


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True), st.text("abc ;=/\t", max_size=50)))
def test_a_plain_head_is_not(fields: dict[str, str]) -> None:
    fields = {"host": "here", **{name: value for name, value in fields.items() if name != "transfer-encoding"}}
    head = b"POST /v1 HTTP/1.1\r\n" + b"".join(f"{n}: {v}\r\n".encode() for n, v in fields.items())
    whole = head + b"content-length: 4\r\n\r\n a\nb" if "content-length" not in fields else head + b"\r\n a\nb"
    assert not is_ambiguous(whole)
    for end in range(0, len(whole), 7):  # as it comes
        assert not is_ambiguous(whole[:end])


@pytest.mark.parametrize(
    ("peer", "said", "address"),
    [
        ("203.0.113.9", "1.2.3.4", "203.0.113.9"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4, 10.1.1.1", "1.2.3.4"),
        ("10.0.0.1", "10.2.2.2, 10.1.1.1", "10.2.2.2"),
        ("10.0.0.1", "1.2.3.4, nonsense", "10.0.0.1"),
        ("::ffff:10.0.0.1", "2606:4700::1", "2606:4700::1"),
    ],
)
def test_behind_a_trusted_proxy_the_address_is_the_client_s(peer: str, said: str, address: str) -> None:
    scope = {"type": "http", "client": (peer, 1)}
    headers = Headers({"x-forwarded-for": said} if said else {})
    assert client_address(scope, headers, [ip_network("10.0.0.0/8")]) == address
    assert client_address(scope, headers, []) == peer
