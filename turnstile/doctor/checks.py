"""`Check`, one line of `turnstile doctor`, and the function that runs a check with a timeout."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from turnstile.schema.amounts import amount
from turnstile.schema.base import Strict
from turnstile.schema.errors import TurnstileError

SECONDS = 5.0
"""Timeout of each check."""


class Check(Strict):
    """One line of `turnstile doctor`."""

    name: str
    status: Literal["ok", "warn", "fail"]
    says: str
    hint: str = ""


async def looked(
    name: str,
    look: Callable[[], Awaitable[list[Check]]],
    hint: str = "check that it runs and that its address is right",
    *,
    at: str = "",
) -> list[Check]:
    """The lines that `look` returns; if it raises or takes longer than `SECONDS`, one failed line called `name`.

    `at` is the address of the server that is asked, for the line of one that is silent.
    """
    try:
        async with asyncio.timeout(SECONDS):
            return await look()
    except TimeoutError:
        says = f"no answer{at and f' from {at}'} in {amount(SECONDS)} s"
    except Exception as error:  # noqa: BLE001 -- any exception of a client becomes a failed line
        says = str(error) if isinstance(error, TurnstileError) else type(error).__name__
    return [Check(name=name, status="fail", says=says, hint=hint)]
