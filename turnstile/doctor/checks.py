"""One line of `turnstile doctor`, and how a look at a server becomes one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from turnstile.schema.base import Strict
from turnstile.schema.errors import TurnstileError

SECONDS = 5.0
"""How long a server may take to answer."""


class Check(Strict):
    """One line."""

    name: str
    status: Literal["ok", "warn", "fail"]
    says: str
    hint: str = ""


async def looked(
    name: str, look: Callable[[], Awaitable[list[Check]]], hint: str = "see that it runs and that its address is right"
) -> list[Check]:
    """What `look` finds, or the failure to look as a line of that name."""
    try:
        async with asyncio.timeout(SECONDS):
            return await look()
    except TimeoutError:
        says = f"no answer in {SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 -- whatever a client raises is the finding
        says = str(error) if isinstance(error, TurnstileError) else type(error).__name__
    return [Check(name=name, status="fail", says=says, hint=hint)]
