"""`turnstile console`: a link that signs a browser in to the console of the `turnstile up` here, once."""

# ruff: noqa: PLC0415 -- as in the other commands: heavy imports wait until a command runs

import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnstile.cli.session import Session


async def console(
    session: "Session",
    show: Annotated[bool, typer.Option("--open", help="Also open it in this machine's browser.")] = False,
) -> None:
    """Print a link that signs one browser in to the console of the running `turnstile up`; valid once, for 10 minutes.

    The console of any other gateway is at its address /console, and asks for a token (`turnstile token add`).
    """
    from turnstile.embedded import find_data
    from turnstile.gateway.console.once import LINK_SECONDS, OneTimeLinks
    from turnstile.processes import addresses

    data = find_data(session.options.data)
    endpoints = addresses.announced(session.options.data)
    if data is None or endpoints is None or endpoints.gateway_url is None:
        raise addresses.NothingRuns(
            "no `turnstile up` runs here or above: start it, or open /console of your gateway and sign in with a token"
        )
    link = OneTimeLinks(data).link(endpoints.gateway_url)
    session.out.result({"url": link, "valid_seconds": LINK_SECONDS}, link)
    if show:
        webbrowser.open(link)
