"""A tool that reads the web, but only the hosts you allow.

FETCH_ALLOWED_HOSTS=docs.python.org,127.0.0.1:8000 python examples/tools/http_fetch.py

An entry is `host` (its ports 80 and 443), `host:port`, or `*.domain` for its subdomains. Redirects are followed within
the allowed hosts only. At most 100 kB are read, in at most 15 seconds; nothing but GET is ever sent. It trusts the
names you allow: one that resolves to an address inside your network is fetched from there.
"""

import http.client
import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from turnstile import ToolFailed, ToolService

ALLOWED = tuple(host.strip().lower() for host in os.environ.get("FETCH_ALLOWED_HOSTS", "").split(",") if host.strip())
LIMIT_BYTES = 100_000
LIMIT_SECONDS = float(os.environ.get("FETCH_SECONDS", "15"))
LIMIT_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
PORTS = {"http": 80, "https": 443}
TEXT = ("text/", "application/json", "application/xml", "application/xhtml", "application/javascript")

service = ToolService(concurrency=8)


@dataclass(frozen=True)
class Page:
    """What a GET answered."""

    url: str
    status: int
    content_type: str
    text: str
    truncated: bool


@service.tool(target="web", suffix="fetch", timeout_seconds=LIMIT_SECONDS + 5)
def http_fetch(url: str) -> Page:
    """Fetch a page or file by HTTP GET and return its text. Only some hosts are allowed.

    url: The address, with http:// or https://.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    for _ in range(LIMIT_REDIRECTS + 1):
        target = allowed(url)
        with connected(target, deadline) as connection:
            path = target.path or "/"
            connection.putrequest("GET", f"{path}?{target.query}" if target.query else path, skip_accept_encoding=True)
            connection.putheader("User-Agent", "turnstile-http-fetch/1")
            connection.endheaders()
            response = connection.getresponse()
            location = response.getheader("Location")
            if response.status not in REDIRECTS or location is None:
                return read(url, response)
        url = urljoin(url, location)
    raise ToolFailed("too_many_redirects", f"more than {LIMIT_REDIRECTS} redirects")


def allowed(url: str) -> SplitResult:
    """The address, if it may be fetched."""
    try:
        target = urlsplit(url)
        host, port = (target.hostname or "").lower(), target.port
    except ValueError as error:
        raise ToolFailed("bad_url", f"no address: {error}") from None
    if target.scheme not in PORTS or not host or target.username is not None:
        raise ToolFailed("bad_url", "an address is http:// or https:// and a host, without a login")
    if any(character <= " " or character > "~" for character in url):
        raise ToolFailed("bad_url", "spaces and characters outside ASCII must be percent-encoded")
    default = port is None or port == PORTS[target.scheme]
    names = {f"{host}:{port or PORTS[target.scheme]}"} | ({host} if default else set[str]())
    wildcards = tuple(host[1:] for host in ALLOWED if host.startswith("*."))
    if names.isdisjoint(ALLOWED) and not (default and host.endswith(wildcards)):
        raise ToolFailed("host_not_allowed", f"{host} is not allowed; allowed are: {', '.join(ALLOWED) or 'none'}")
    return target


@contextmanager
def connected(target: SplitResult, deadline: float) -> Generator[http.client.HTTPConnection]:
    """A connection that is cut at the deadline, however slowly the other side dribbles."""
    left = max(0.01, deadline - time.monotonic())
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.hostname or "", target.port, timeout=left)

    timer: threading.Timer | None = None
    failure = ""
    try:
        connection.connect()
        timer = threading.Timer(deadline - time.monotonic(), cut, (connection.sock,))
        timer.start()
        yield connection
    except (OSError, http.client.HTTPException) as error:
        failure = str(error) or type(error).__name__
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()
    if time.monotonic() >= deadline - 0.05:  # cut, and what was read may be half of it
        raise ToolFailed("fetch_timeout", f"{target.hostname} took more than {LIMIT_SECONDS:g} s")
    if failure:
        raise ToolFailed("fetch_failed", f"{target.hostname}: {failure}")


def cut(sock: socket.socket) -> None:
    """End whatever is being read."""
    with suppress(OSError):  # over already
        sock.shutdown(socket.SHUT_RDWR)


def read(url: str, response: http.client.HTTPResponse) -> Page:
    """The text of a response, or as much of it as is allowed."""
    kind = response.headers.get_content_type()
    if not kind.startswith(TEXT) and not kind.endswith(("+json", "+xml")):
        raise ToolFailed("not_text", f"{kind} is no text")
    body = response.read(LIMIT_BYTES + 1)
    charset = response.headers.get_content_charset() or "utf-8"
    try:
        text = body[:LIMIT_BYTES].decode(charset, "replace")
    except LookupError:
        text = body[:LIMIT_BYTES].decode("utf-8", "replace")
    return Page(url, response.status, kind, text, truncated=len(body) > LIMIT_BYTES)


if __name__ == "__main__":
    service.main()
