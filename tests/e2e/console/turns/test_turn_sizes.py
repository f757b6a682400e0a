"""Pages of turns of a large project: so many statements, so many bytes, and less than a second of the server's time."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.support.console.filling import fill
from tests.support.gateway import composed, token_of
from tests.support.processes.stack import Stack
from turnstile.gateway.app import Gateway
from turnstile.gateway.console.sessions import COOKIE
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import AgentTurnId, ProjectId

SHELL = 2
"""Statements of every page: the token's, and the count of open questions."""
LARGEST = 200_000


@asynccontextmanager
async def watching(stack: Stack, project: ProjectId) -> AsyncGenerator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway without a server, and a viewer of the project."""
    token = await token_of(stack, project, GatewayRole.VIEWER)
    async with composed(stack) as gateway:
        transport = httpx.ASGITransport(app=gateway.app)
        cookies = {COOKIE: token}
        async with httpx.AsyncClient(transport=transport, base_url="http://here", cookies=cookies) as web:
            yield gateway, web


async def measured(gateway: Gateway, web: httpx.AsyncClient, address: str) -> tuple[int, int, float]:
    """Statements, bytes and the median seconds of five loads."""
    seconds: list[float] = []
    trips = size = 0
    await web.get(address)  # plans, and templates, are made once
    for _ in range(5):
        trips, begun = gateway.pool.round_trips, time.perf_counter()
        answer = await web.get(address)
        seconds.append(time.perf_counter() - begun)
        trips, size = gateway.pool.round_trips - trips, len(answer.content)
        assert answer.status_code == 200, answer.text
    return trips, size, sorted(seconds)[2]


def pages(root: AgentTurnId, live: AgentTurnId, ended: AgentTurnId) -> dict[str, tuple[str, int]]:
    """The addresses, and how many statements each may send beside the shell's."""
    return {
        "now": ("/console", 2),
        "now, people": ("/console?state=people", 2),
        "now, profile": ("/console?profile=helper&page=2", 2),
        "turns": ("/console/turns", 1),
        "search": (f"/console/turns?q={root[:4]}", 1),
        "a live turn": (f"/console/turns/{live}", 9),
        "an ended turn": (f"/console/turns/{ended}", 9),
        "the root": (f"/console/turns/{root}", 9),
        "tree": (f"/console/turns/{root}/tree", 2),
        "children": (f"/console/turns/{root}/tree?of={root}&state=success&page=2", 2),
    }


@pytest.mark.parametrize(
    ("turns", "live", "children", "most"),
    [(600, 90, 260, None), pytest.param(10_000, 8_900, 1_000, 1.0, marks=pytest.mark.long)],
    ids=["small", "large"],
)
async def test_pages_of_a_large_project_take_few_statements_and_less_than_a_second(
    stack: Stack, turns: int, live: int, children: int, most: float | None, record_property: Callable[[str, str], None]
) -> None:
    project = ProjectId(f"sizes-{turns}")
    root = await fill(stack.pool, project, turns=turns, live=live, children=children)
    asleep, over = AgentTurnId(f"{project}-t2"), AgentTurnId(f"{project}-t{turns - 1}")
    figures: list[str] = []
    async with watching(stack, project) as (gateway, web):
        for name, (address, statements) in pages(root, asleep, over).items():
            trips, size, seconds = await measured(gateway, web, address)
            figures.append(f"{name}: {trips} statements, {size / 1000:.0f} kB, {seconds * 1000:.0f} ms")
            assert trips <= SHELL + statements, figures
            assert size < LARGEST, figures
            assert most is None or seconds < most, figures
        words = (await web.get("/console")).text
        assert f'all live <span class="count">{live:,}</span>' in words
        tree = (await web.get(f"/console/turns/{root}/tree")).text
        assert f"{children + 1:,}" in tree
        assert "failed below" in tree
    record_property("figures", "; ".join(figures))
