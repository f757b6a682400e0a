"""Streams that resume: nothing is lost, nothing comes twice, whatever breaks off.

Also where a client takes nothing, or NATS forgets.
"""

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.gateway import Folded, Sent, client, events_of, serving, token_of
from tests.support.processes.nats_server import eventually
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.wire import subjects
from turnstile.transport.streams import call_api

pytestmark = pytest.mark.shared_stack

WORDS = "".join(f"word-{number} " for number in range(300))
LONG = json.dumps({"steps": [{"text": WORDS, "chunks": 75, "delay_seconds": 0.02}]})
STEPS = json.dumps(
    {
        "steps": [
            {"text": "first thought", "chunks": 5, "tool_calls": [{"name": "missing_tool", "arguments": {}}]},
            {"text": "and the answer", "chunks": 5},
        ]
    }
)


async def begun(web: httpx.AsyncClient, instruction: str, **fields: str) -> AgentTurnId:
    """A turn that was just enqueued."""
    made = await web.post("/v1/turns", json={"agent_id": ALICE, "instruction": instruction, **fields})
    assert made.status_code in (201, 202), made.text
    return AgentTurnId(made.json()["agent_turn_id"])


async def follow(
    web: httpx.AsyncClient, path: str, folded: Folded, *, cut_after: int | None = None, until: str = "outcome"
) -> bool:
    """Read a stream on, as far as its end or so many events; returns whether it was read to the event `until`."""
    headers = {} if folded.last is None else {"last-event-id": folded.last}
    async with web.stream("GET", path, headers=headers) as response:
        if response.status_code == 204:
            return True
        assert response.status_code == 200, await response.aread()
        left = cut_after
        async for sent in events_of(response):
            folded.take(sent)
            if sent.event == until:
                return True
            if left is not None and sent.event == "chunk":
                left -= 1
                if left <= 0:
                    return False
    return False


@pytest.fixture
async def second(here: Stack, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    """A client of another gateway."""
    async with serving(here) as url, client(url, await token_of(here, tenant.project)) as made:
        yield made


async def test_a_stream_tells_a_turn_to_its_outcome(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    turn = await begun(web, LONG)
    folded = Folded()
    assert await follow(web, f"/v1/turns/{turn}/events", folded)
    assert folded.outcome is not None
    assert folded.outcome["output"]["text"] == WORDS
    assert folded.text == {f"{turn}-s1": WORDS}
    assert (folded.lost, folded.doubled, folded.resets) == (0, 0, 0)
    assert folded.chunks > 20
    assert folded.order[0] == "state"
    assert folded.order[-1] == "outcome"
    assert folded.order.index("card") < folded.order.index("step")
    over = await web.get(f"/v1/turns/{turn}/events", headers={"last-event-id": folded.last or ""})
    assert over.status_code == 204


async def test_clients_that_are_cut_lose_nothing_and_get_nothing_twice(
    web: httpx.AsyncClient, second: httpx.AsyncClient, tenant: Tenant
) -> None:
    """Each goes on at one of two gateways."""
    await tenant.agent("player")
    turn = await begun(web, LONG)

    async def read(number: int) -> Folded:
        folded = Folded()
        draw = random.Random(number)  # noqa: S311 -- where to cut, not a secret
        for cut in range(40):
            gateway = draw.choice((web, second))
            most = draw.randint(1, 30) if cut < 10 else None
            if await follow(gateway, f"/v1/turns/{turn}/events", folded, cut_after=most):
                return folded
        raise AssertionError("no end")

    for folded in await asyncio.gather(*(read(number) for number in range(8))):
        assert folded.outcome is not None
        assert (folded.lost, folded.doubled) == (0, 0)
        exact = folded.text.get(f"{turn}-s1") == WORDS
        assert exact or (folded.resets and any(card["content"].get("text") == WORDS for card in folded.cards.values()))


async def test_cards_results_and_steps_come_in_order(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    turn = await begun(web, STEPS)
    live = Folded()
    assert await follow(web, f"/v1/turns/{turn}/events", live)
    late = Folded()
    assert await follow(web, f"/v1/turns/{turn}/events", late)
    assert list(late.cards) == list(live.cards)
    assert late.chunks == 0
    kinds = [card["type"] for card in late.cards.values()]
    assert kinds[-1] == "task.deliverable"
    assert not [kind for kind in kinds if kind.startswith("sys.")]
    assert live.outcome == late.outcome


async def test_a_resumed_step_that_is_over_is_reset_and_told_by_its_card(
    web: httpx.AsyncClient, second: httpx.AsyncClient, tenant: Tenant
) -> None:
    await tenant.agent("player")
    turn = await begun(web, LONG)
    folded = Folded()
    assert not await follow(web, f"/v1/turns/{turn}/events", folded, cut_after=10)
    await tenant.ended(turn)
    assert await follow(second, f"/v1/turns/{turn}/events", folded)
    assert (folded.lost, folded.doubled, folded.resets) == (0, 0, 1)
    assert folded.text[f"{turn}-s1"] == ""
    assert {card["content"]["text"] for card in folded.cards.values()} == {WORDS}  # a thought, and the deliverable


async def test_a_place_in_another_turn_or_none_is_refused(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    turn, other = await begun(web, STEPS), await begun(web, STEPS)
    for last in (f"{other}:1.0.1.3", "1", "x" * 5000, f"{turn}:1.0.1", f"{turn}:1.9.1.1", f"{turn}:end!"):
        answer = await web.get(f"/v1/turns/{turn}/events", headers={"last-event-id": last})
        assert answer.status_code in (400, 409), last
        assert answer.json()["code"] in ("wrong_event_id", "bad_request")
    await tenant.ended(turn)
    await tenant.ended(other)


async def test_a_conversation_is_streamed_turn_by_turn(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    text = {"steps": [{"text": "hello there", "chunks": 3}]}
    first = await begun(web, json.dumps(text), conversation_id="talk")
    await tenant.ended(first)
    folded, path = Folded(), "/v1/conversations/talk/events"
    assert await follow(web, path, folded)
    second = await begun(web, json.dumps(text), conversation_id="talk")
    assert await follow(web, path, folded, until="outcome")
    assert folded.outcome is not None
    assert folded.outcome["agent_turn_id"] == second
    assert folded.order.count("outcome") == 2
    assert (folded.lost, folded.doubled) == (0, 0)


async def test_from_each_place_of_a_conversation_the_rest_comes_once(web: httpx.AsyncClient, tenant: Tenant) -> None:
    """Turns within a few seconds; a client that comes back at any of their events, and one that wants the last."""
    await tenant.agent("player")
    text = json.dumps({"steps": [{"text": "hello there", "chunks": 3}]})
    path = "/v1/conversations/talk/events"
    turns = [await begun(web, text, conversation_id="talk") for _ in range(3)]
    for turn in turns:
        await tenant.ended(turn)
    whole = await events_until(web, path, turns[-1])
    assert [sent.id for sent in whole if sent.event == "outcome"] == [f"{turn}:end" for turn in turns]
    last = await begun(web, text, conversation_id="talk")
    await tenant.ended(last)
    whole += await events_until(web, path, last, whole[-1].id)
    ids = [sent.id for sent in whole if sent.id is not None]
    assert len(ids) == len(set(ids))
    kept = [name for name in ids if ":1.0." not in name]  # not text that is told by its step's cards
    rests = await asyncio.gather(*(events_until(web, path, last, name) for name in kept[:-1]))
    for place, rest in enumerate(rests):
        assert [sent.id for sent in rest if sent.id is not None] == kept[place + 1 :]
    counts = (1, 2)
    lasts = await asyncio.gather(*(events_until(web, f"{path}?turns={count}", last) for count in counts))
    for count, shown in zip(counts, lasts, strict=True):
        assert [sent.id for sent in shown if sent.event == "outcome"] == [
            f"{turn}:end" for turn in [*turns, last][-count:]
        ]


async def events_until(web: httpx.AsyncClient, path: str, turn: str, after: str | None = None) -> list[Sent]:
    """The events of a stream to the outcome of this turn, and those of the moment after it."""
    found: list[Sent] = []
    async with web.stream("GET", path, headers={} if after is None else {"last-event-id": after}) as response:
        assert response.status_code == 200, await response.aread()
        events = events_of(response)
        async for sent in events:
            found.append(sent)
            if sent.event == "outcome" and sent.data["agent_turn_id"] == turn:
                break
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                found.append(await anext(events))
    return found


async def test_a_client_that_goes_away_stops_a_turn_only_if_it_said_so(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    turn = await begun(web, LONG)
    await follow(web, f"/v1/turns/{turn}/events", Folded(), cut_after=3)
    assert (await tenant.ended(turn)).view.status == "success"
    turn = await begun(web, LONG)
    await follow(web, f"/v1/turns/{turn}/events?on_disconnect=cancel", Folded(), cut_after=3)
    assert (await tenant.ended(turn)).view.error_code == "stopped"


async def test_a_viewer_may_watch_and_not_stop(url: str, web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    turn = await begun(web, LONG)
    async with client(url, await token_of(tenant.stack, tenant.project, GatewayRole.VIEWER)) as viewer:
        assert (await viewer.get(f"/v1/turns/{turn}/events?on_disconnect=cancel")).status_code == 403
        folded = Folded()
        assert await follow(viewer, f"/v1/turns/{turn}/events", folded)
        assert folded.text == {f"{turn}-s1": WORDS}


async def test_a_gateway_that_stops_tells_its_streams_to_come_back(here: Stack, tenant: Tenant, tmp_path: Path) -> None:
    await tenant.agent("paced")
    pace = tmp_path / "pace"
    pace.write_text("5")
    token, folded = await token_of(here, tenant.project), Folded()
    first = serving(here)
    async with client(await first.__aenter__(), token) as web:
        turn = await begun(web, json.dumps({"words": WORDS, "pace": str(pace)}))
        ending: asyncio.Task[object] | None = None
        async with web.stream("GET", f"/v1/turns/{turn}/events") as response:
            async for sent in events_of(response):
                folded.take(sent)
                if folded.chunks and ending is None:
                    ending = asyncio.create_task(first.__aexit__(None, None, None))
        assert ending is not None
        await ending
    assert folded.order[-1] == "reconnect"
    assert folded.outcome is None
    async with serving(here) as url, client(url, token) as web:
        before = folded.chunks
        following = asyncio.create_task(follow(web, f"/v1/turns/{turn}/events", folded))
        pace.write_text("10")
        await eventually(lambda: folded.chunks > before)
        pace.write_text("300")
        assert await following
    assert (folded.lost, folded.doubled) == (0, 0)
    assert folded.text[f"{turn}-s1"] == WORDS


async def test_a_client_that_takes_nothing_is_cut_and_can_go_on(here: Stack, tenant: Tenant) -> None:
    await tenant.agent("player")
    token = await token_of(here, tenant.project)
    big = "x" * 200_000
    async with serving(here, slow_reader_seconds=0.5) as url:
        place = urlsplit(url)
        async with client(url, token) as web:
            turn = await begun(web, f'{{"steps": [{{"text": "{big}"}}]}}')
            await tenant.ended(turn)
            with socket.socket() as stuck:
                stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                stuck.connect((place.hostname, place.port))
                stuck.sendall(
                    f"GET /v1/turns/{turn}/events HTTP/1.1\r\nhost: {place.netloc}\r\n"
                    f"authorization: Bearer {token}\r\n\r\n".encode()
                )
                stuck.setblocking(False)
                await asyncio.sleep(2)
                got = await asyncio.to_thread(_drained, stuck)
            assert b"event: outcome" not in got
            folded = Folded()
            assert await follow(web, f"/v1/turns/{turn}/events", folded)
            assert folded.outcome is not None
            assert folded.outcome["output"]["text"] == big


def _drained(stuck: socket.socket) -> bytes:
    """What comes until the connection is over."""
    got = b""
    stuck.settimeout(5)
    try:
        while part := stuck.recv(65_536):
            got += part
    except ConnectionError:
        pass
    return got


async def test_where_the_stream_of_text_is_gone_the_card_has_it(
    here: Stack, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    """As after a restart of NATS, whose memory it was in."""
    await tenant.agent("player")
    turn = await begun(web, LONG)
    path, folded = f"/v1/turns/{turn}/events", Folded()
    assert not await follow(web, path, folded, cut_after=8)
    await call_api(here.conn, f"STREAM.PURGE.{subjects.STR_STREAM}", {})
    async with serving(here) as other, client(other, await token_of(here, tenant.project)) as fresh:
        assert await follow(fresh, path, folded)
    assert (folded.lost, folded.doubled, folded.resets) == (0, 0, 1)
    assert {card["content"]["text"] for card in folded.cards.values()} == {WORDS}


async def test_the_callers_trace_goes_on(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    trace = "0af7651916cd43dd8448eb211c80319c"
    for given, kept in ((f"00-{trace}-b7ad6b7169203331-01", True), ("nonsense", False)):
        body = {"agent_id": "alice", "instruction": '{"steps": [{"text": "x"}]}'}
        made = await web.post("/v1/turns", json=body, headers={"traceparent": given, "prefer": "wait=20"})
        assert (made.json()["trace_id"] == trace) is kept
        card = await web.get(made.headers["location"])
        assert card.status_code == 200
    [row] = await tenant.rows(
        "SELECT DISTINCT metadata ->> 'author_id' AS author FROM public.cards "
        "WHERE tenant_id = $1 AND metadata ->> 'type' = 'task.instruction'",
        tenant.project,
    )
    assert row["author"].startswith("token.")
