"""What the programs of `typed_*.py` have in common: the value that they expect, what the model does, and the count.

Each is `python typed_X.py URL TOKEN PROFILE COUNT`, and prints how many of its conversations came whole, as JSON. Their
clients repeat requests whose connection broke, so that a gateway may die meanwhile.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel

RETRIES = 8


class Order(BaseModel):
    """An order of a shop."""

    id: int
    lines: list[str]


GOOD = Order(id=7, lines=["bread"])


def plays(*steps: dict[str, Any]) -> str:
    """An instruction for a scripted model; each step takes a moment, in which something may die."""
    return json.dumps({"steps": [{"delay_seconds": 0.2, **step} for step in steps]})


def calls(name: str, arguments: Any) -> dict[str, Any]:
    """A step that calls a tool."""
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


SUBMITS = calls("submit_result", {"value": GOOD.model_dump()})
REPAIRS = plays(calls("submit_result", {"value": {"id": "7"}}), {"text": "Order 7."}, SUBMITS)
"""A model that is wrong twice."""
WEATHER = calls("weather", {"city": "Graz"})
SUNNY = "It is sunny in Graz."


def weather(city: str) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


def equal(found: object, expected: object) -> None:
    """Raise where something is not whole."""
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


def run(converse: Callable[[AsyncOpenAI, str], Awaitable[None]]) -> None:
    """Converse so often, ten at once."""
    url, token, profile, count = sys.argv[1:]

    async def main() -> None:
        slots, failures = asyncio.Semaphore(10), list[str]()
        address = f"{url}/openai/v1"
        async with AsyncOpenAI(base_url=address, api_key=token, max_retries=RETRIES, timeout=120) as client:

            async def one(number: int) -> None:
                async with slots:
                    try:
                        await converse(client, profile)
                    except Exception as error:  # noqa: BLE001 -- whatever a package raises is no whole answer
                        failures.append(f"{number}: {type(error).__name__}: {error}"[:500])

            await asyncio.gather(*(one(number) for number in range(int(count))))
        for failure in failures[:5]:
            sys.stderr.write(failure + "\n")
        sys.stdout.write(json.dumps({"asked": int(count), "whole": int(count) - len(failures)}) + "\n")

    asyncio.run(main())
