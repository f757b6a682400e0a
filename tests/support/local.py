"""The real local model of the tests: its weights, fetched once into the user's cache, and what its server says."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from turnstile.local.fetching import FetchFailed, fetch
from turnstile.local.model_servers import LocalServers
from turnstile.local.weights import SMOLLM2
from turnstile.schema.base import JsonObject

MODEL = f"local/{SMOLLM2.name}"


async def weights_or_skip() -> Path:
    """The weights of smollm2; skips the test with the reason where they cannot be had."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed: requirements-dev.lock has it where it has wheels")
    try:
        await fetch(SMOLLM2, print)
    except FetchFailed as error:
        pytest.skip(str(error).splitlines()[0])
    return SMOLLM2.file


async def asked_server(servers: LocalServers, path: str, payload: JsonObject | None = None) -> Any:
    """What the model's server answers to a GET, or to a POST of `payload`."""
    base = (await servers.address(SMOLLM2.name)).removesuffix("/v1")
    async with httpx.AsyncClient(base_url=base, timeout=30, trust_env=False) as client:
        answer = await (client.get(path) if payload is None else client.post(path, json=payload))
    answer.raise_for_status()
    return answer.json()


async def busy_slots(servers: LocalServers) -> int:
    """How many of its slots write an answer."""
    slots = await asked_server(servers, "/slots")
    return sum(bool(slot["is_processing"]) for slot in slots)


async def count_tokens(servers: LocalServers, text: str) -> int:
    """The tokens of a text as the model's own vocabulary has them."""
    found = await asked_server(servers, "/tokenize", {"content": text, "parse_special": True})
    return len(found["tokens"])
