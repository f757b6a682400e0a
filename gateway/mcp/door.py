"""`/mcp`: who may come in, and the SDK's modules, loaded for the first of them (protocol §17.2).

Costs nothing until then. Without the package `mcp` there is no such address.
"""

import asyncio
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from turnstile.gateway.bounds import GatewayLimits
from turnstile.gateway.http.endpoints import Call, NoQuery, admitted, read_json_bytes
from turnstile.gateway.http.guard import ROUTE
from turnstile.gateway.kernel import Kernel
from turnstile.schema.access import Right

if TYPE_CHECKING:
    from turnstile.gateway.mcp.inbound_messages import Messages


@dataclass(slots=True)
class McpDoor:
    """The ASGI application of the address."""

    kernel: Kernel
    limits: GatewayLimits
    _messages: "Messages | None" = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE] = "mcp"
        request = Request(scope, receive)
        principal, secret = await admitted(request, self.kernel.access, Right.READ)
        body = await read_json_bytes(request, self.limits.body_bytes)
        call = Call(principal, {}, NoQuery(), NoQuery(), request.headers, request, secret)
        answer = await (await self._loaded()).answered(call, body)
        await answer(scope, receive, send)

    async def _loaded(self) -> "Messages":
        if (messages := self._messages) is None:
            module = await asyncio.to_thread(importlib.import_module, "turnstile.gateway.mcp.inbound_messages")
            messages = self._messages = self._messages or module.Messages(self.kernel)
        return messages
