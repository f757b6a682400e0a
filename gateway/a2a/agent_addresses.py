"""Every endpoint below `/a2a`. The router is made of this; `/v1/openapi.json` has none of them (protocol §17.3)."""

from turnstile.gateway.a2a.refusals import CARD
from turnstile.gateway.a2a.rpc import Agents
from turnstile.gateway.bounds import About
from turnstile.gateway.http.endpoints import Endpoint
from turnstile.gateway.kernel import Kernel
from turnstile.schema.access import Right


def a2a_endpoints(kernel: Kernel, about: About) -> list[Endpoint]:
    """All of them."""
    agents = Agents(kernel, about)
    root = Endpoint(
        name="a2a_root_card",
        method="GET",
        path=CARD,
        right=Right.READ,
        summary="The card of the default agent, where clients look first.",
        handler=agents.card,
    )
    return [
        *([root] if about.default_agent else []),
        Endpoint(
            name="a2a_card",
            method="GET",
            path=f"/a2a/{{agent:path}}{CARD}",
            right=Right.READ,
            summary="The card of an agent.",
            handler=agents.card,
        ),
        Endpoint(
            name="a2a",
            method="POST",
            path="/a2a/{agent:path}",
            right=Right.READ,
            summary="A request of JSON-RPC.",
            handler=agents.ask,
            raw=True,
        ),
    ]
