"""How requests to providers are sent: by aiohttp, which litellm has as a transport for httpx.

httpx's own transport parses each chunk of a stream in Python, some 100 µs for each; aiohttp gives all bytes that have
come as one. Loaded with litellm. All clients of an event loop share one session, which ends with `close_session`:
litellm drops clients without closing them.
"""

import asyncio
import ssl
from weakref import WeakKeyDictionary

import httpx
from aiohttp import ClientSession, DummyCookieJar, TCPConnector
from litellm.llms.custom_httpx.aiohttp_transport import AiohttpResponseStream, LiteLLMAiohttpTransport

from turnstile.activities.models.provider_bytes import send_overheard

setattr(AiohttpResponseStream, "CHUNK_SIZE", 1_048_576)  # noqa: B010 -- bytes read at once; litellm's own type is 16384
_KEEPALIVE_SECONDS = 60.0
_SESSIONS = WeakKeyDictionary[asyncio.AbstractEventLoop, ClientSession]()


class ProviderTransport(LiteLLMAiohttpTransport):
    """HTTP whose responses are mended and overheard, where somebody does."""

    def get_valid_client_session(self) -> ClientSession:
        """The session of the running event loop."""
        return _session()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request."""
        return await send_overheard(request, super().handle_async_request)

    async def aclose(self) -> None:
        """Do nothing: others use the session, too."""


def _session() -> ClientSession:
    loop = asyncio.get_running_loop()
    session = _SESSIONS.get(loop)
    if session is None or session.closed:
        connector = TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS)
        session = _SESSIONS[loop] = ClientSession(connector=connector, cookie_jar=DummyCookieJar())
    return session


def transport(
    ssl_context: ssl.SSLContext | None = None, ssl_verify: bool | None = None, **_: object
) -> ProviderTransport:
    """The transport of a client of litellm's: certificates are checked by `ssl_context`, or not if that is False."""
    return ProviderTransport(_session, ssl_verify=False if ssl_verify is False else ssl_context)


async def close_session() -> None:
    """Close the connections of the running event loop; the next request opens others."""
    session = _SESSIONS.pop(asyncio.get_running_loop(), None)
    if session is not None:
        await session.close()
