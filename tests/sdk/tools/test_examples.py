"""The tools of examples/, each a process of its own, used by agents of the real stack."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from tests.sdk.tools.stack import Call, Stack, eventually
from tests.support.paths import ROOT
from turnstile.schema.tools import ToolDefinition

EXAMPLES = ROOT / "examples" / "tools"


def definition(name: str) -> ToolDefinition:
    """What `turnstile tool put` reads."""
    return ToolDefinition.model_validate(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()))


@contextmanager
def example(name: str, *arguments: str, **environment: str) -> Generator[None]:
    """The example's process; it must end well when it is told to."""
    process = subprocess.Popen([sys.executable, EXAMPLES / f"{name}.py", *arguments], env={**os.environ, **environment})
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=25) == 0
    finally:
        process.kill()
        process.wait()


class Site(BaseHTTPRequestHandler):
    """Pages on loopback."""

    def do_GET(self) -> None:
        here = self.headers["Host"].partition(":")[2]
        match self.path:
            case "/hello?to=you":
                self.answer(200, "text/plain; charset=latin-1", "Grüß dich".encode("latin-1"))
            case "/missing":
                self.answer(404, "text/html", b"<h1>no</h1>")
            case "/moved":
                self.answer(302, "text/plain", b"", Location="/hello?to=you")
            case "/away":
                self.answer(302, "text/plain", b"", Location=f"http://localhost:{here}/hello?to=you")
            case "/loop":
                self.answer(302, "text/plain", b"", Location="/loop")
            case "/big":
                self.answer(200, "application/json", b"x" * 150_000)
            case "/image":
                self.answer(200, "image/png", b"\x89PNG")
            case _:
                self.answer(200, "text/plain", b"", dribble=True)

    def answer(self, status: int, kind: str, body: bytes, *, dribble: bool = False, **headers: str) -> None:
        """A response; one that dribbles never comes to its end."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", "100000" if dribble else str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
            while dribble:
                self.wfile.write(b".")
                time.sleep(0.05)
        except OSError:  # the tool has gone
            pass

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name is the library's
        """Nothing."""


@pytest.fixture
def site() -> Iterator[str]:
    """`host:port` of the pages."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


async def test_word_count(stack: Stack) -> None:
    agent = await stack.register(definition("word_count"))
    with example("word_count", NATS_URL=stack.endpoints.nats_url):
        text = "so much\ndepends upon"
        played = await stack.play(
            agent, *(Call("word_count", {"text": text} | more) for more in ({}, {"unit": "lines"}))
        )
    assert {"words": 4} in [result["result"] for result in played.results]
    assert {"lines": 2} in [result["result"] for result in played.results]


async def test_http_fetch_reads_allowed_hosts_only(stack: Stack, site: str) -> None:
    agent = await stack.register(definition("http_fetch"))
    environment = {"FETCH_ALLOWED_HOSTS": f"docs.example, {site}, *.example.org", "FETCH_SECONDS": "1"}

    async def fetch(url: str) -> dict[str, Any]:
        return (await stack.play(agent, Call("http_fetch", {"url": url}))).result

    async def page(path: str) -> dict[str, Any]:
        return (await fetch(f"http://{site}{path}"))["result"]

    with example("http_fetch", "--nats", stack.endpoints.nats_url, **environment):
        assert await page("/hello?to=you") == {
            "url": f"http://{site}/hello?to=you",
            "status": 200,
            "content_type": "text/plain",
            "text": "Grüß dich",
            "truncated": False,
        }
        assert (await page("/missing"))["status"] == 404
        assert (await page("/moved"))["url"].endswith("/hello?to=you")
        big = await page("/big")
        assert (len(big["text"]), big["truncated"]) == (100_000, True)
        port = site.partition(":")[2]
        told: dict[str, str] = {
            f"http://{site}/away": "host_not_allowed",
            f"http://localhost:{port}/hello": "host_not_allowed",
            "http://127.0.0.1/hello": "host_not_allowed",
            f"http://{site}@evil.example/": "bad_url",
            "http://evil.example.org.example/": "host_not_allowed",
            "http://example.org.evil/": "host_not_allowed",
            f"file://{site}/etc/passwd": "bad_url",
            f"http://{site}/a\r\nX-Evil: 1": "bad_url",
            f"http://{site}/loop": "too_many_redirects",
            f"http://{site}/image": "not_text",
            f"http://{site}/dribble": "fetch_timeout",
        }
        agents = [await stack.register(definition("http_fetch")) for _ in told]
        played = await asyncio.gather(
            *(stack.play(each, Call("http_fetch", {"url": url})) for each, url in zip(agents, told, strict=True))
        )
        assert dict(zip(told, (each.error.code for each in played), strict=True)) == told


async def test_plain_nats_hears_a_command_again_that_it_missed(stack: Stack) -> None:
    agent = await stack.register(definition("plain_nats"))
    async with stack.overheard() as commands:
        turn = asyncio.create_task(stack.play(agent, Call("hash_text", {"text": "abc"})))
        await eventually(lambda: commands)  # the command is published, and nobody hears it
        with example("plain_nats", stack.endpoints.nats_url):
            missed = await turn
            heard = [(command.headers or {})["Nats-Msg-Id"] for command in commands]
            played = await stack.play(agent, *(Call("hash_text", {"text": text}) for text in ("x", "y")))
    first, *repeats = heard  # the process came after the first one, so it answered a repeat of the safety net
    assert repeats == [f"{first}-{number}" for number in range(1, len(repeats) + 1)] != []
    assert missed.result["result"]["hex"] == hashlib.sha256(b"abc").hexdigest()
    got = {result["result"]["hex"] for result in played.results}
    assert got == {hashlib.sha256(text).hexdigest() for text in (b"x", b"y")}
