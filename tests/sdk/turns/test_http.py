"""What only a client of a gateway meets: tokens, addresses that are none, and what answers in a gateway's place."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest

from tests.sdk.turns.conftest import Way
from tests.sdk.turns.test_turns import SLOW, STREAMED, WORDS, code_of, text_of
from tests.support.gateway import token_of
from tests.support.tenants import ALICE, Tenant
from turnstile import BadRequest, Client, ConfigError, ServerUnavailable
from turnstile.schema.access import GatewayRole, new_secret


@pytest.fixture
def here(gateway_url: str, token: str) -> Way:
    """The gateway."""
    return Way(gateway_url, None, token)


@asynccontextmanager
async def answering(response: str) -> AsyncGenerator[str]:
    """The address of a server that answers every request with this."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response.replace("\n", "\r\n").encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def test_what_is_no_token_or_no_address_is_refused_before_anything_is_sent(
    here: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TURNSTILE_TOKEN", raising=False)
    for client, words in (
        (Client(here.address), "needs a token"),
        (Client(here.address, token=here.token, project="p"), "of one project"),
        (Client("nats://127.0.0.1:1", token=here.token), "for a gateway"),
    ):
        with pytest.raises(BadRequest, match=words):
            await client.open()
    secret = "tsk_not-one\nX-Evil: 1"
    for client, words in (
        (Client(here.address, token=secret), "begins with tsk_"),
        (Client("https://", token=here.token), "https://HOST"),
        (Client("http://a:b@127.0.0.1:1", token=here.token), "without a login"),
        (Client("http://127.0.0.1:port", token=here.token), "makes no sense"),
    ):
        with pytest.raises(ConfigError, match=words) as refused:
            await client.open()
        assert "Evil" not in str(refused.value)


async def test_the_environment_names_gateway_and_token(here: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_URL", here.address)
    monkeypatch.setenv("TURNSTILE_TOKEN", f"{here.token}\n")
    async with Client() as client:
        assert await text_of(client.ask(ALICE, STREAMED)) == WORDS
        with pytest.raises(BadRequest, match="no verbs"):
            _ = client.bridge


async def test_a_token_that_is_not_valid_or_may_not_is_told_so(here: Way, tenant: Tenant) -> None:
    async with here.client(token=new_secret().text) as client:
        turn = client.ask(ALICE, "x")
        for asked in (turn.start(), turn.result(5), anext(aiter(turn)), client.turn("x")):
            with pytest.raises(ConfigError, match="refuses the login: the token is not valid"):
                await asked
    async with here.client() as client:
        asked = await client.ask(ALICE, STREAMED).start()
    async with here.client(token=await token_of(tenant.stack, tenant.project, GatewayRole.VIEWER)) as viewer:
        assert await code_of(viewer.ask(ALICE, "x").start()) == "forbidden"
        assert (await (await viewer.turn(asked)).result(10)).value == WORDS
    only = await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT, channel="u_ada")
    async with here.client(token=only) as ada, here.client(token=only, channel="public") as elsewhere:
        assert await code_of(ada.turn(asked)) == "unknown_turn"
        assert (await ada.ask(ALICE, STREAMED).result(10)).ok
        assert await code_of(elsewhere.ask(ALICE, STREAMED).start()) == "forbidden"


async def test_many_turns_are_followed_at_once(here: Way) -> None:
    async with here.client() as client, AsyncExitStack() as stack:
        turn = client.ask(ALICE, SLOW)
        await turn.start()
        streams = [await stack.enter_async_context(aclosing(aiter(turn))) for _ in range(120)]
        async with asyncio.timeout(8):
            firsts = await asyncio.gather(*(anext(stream) for stream in streams))
            assert await client.ask(ALICE, STREAMED).start()
        assert set(firsts) <= {WORDS[:1], WORDS[:2], WORDS}


@pytest.mark.parametrize(
    ("response", "error", "words"),
    [
        ("HTTP/1.1 404 Not Found\ncontent-length: 4\n\nnope", ConfigError, "no gateway of this version .HTTP 404."),
        ("HTTP/1.1 200 OK\ncontent-length: 4\n\nnope", ConfigError, "something else"),
        ("HTTP/1.1 302 Found\nlocation: http://127.0.0.1/\ncontent-length: 0\n\n", ConfigError, "HTTP 302"),
        ("HTTP/1.1 502 Bad Gateway\ncontent-length: 0\n\n", ServerUnavailable, "HTTP 502"),
        ("SSH-2.0-OpenSSH_9.9\n", ServerUnavailable, "does not answer"),
    ],
)
async def test_what_is_no_gateway_is_told_from_one_that_is_away(
    here: Way, response: str, error: type[Exception], words: str
) -> None:
    async with answering(response) as url, here.client(address=url) as client:
        with pytest.raises(error, match=words):
            await client.ask(ALICE, "x").start()
