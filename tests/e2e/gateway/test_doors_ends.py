"""Each door's stream ends with its turn's outcome, after all that came before it (protocol §14.2)."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from nats.aio.msg import Msg

from tests.conftest import USUALLY_AND_LONG
from tests.e2e.gateway.agui.front_end import FrontEnd
from tests.e2e.gateway.mcp.official import SESSIONS, Door, told
from tests.support.a2a.clients import Heard, a2a_client, saying
from tests.support.gateway import Folded, client, events_of, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from tests.support.tools import Command, calling, definition
from turnstile.ledger.roster import put_tool
from turnstile.schema.ids import AgentId


@dataclass(frozen=True)
class Size:
    """Turns that each door has, and that run at the same time: more than two cores serve without delay."""

    turns: int
    at_once: int


LOOK, ANSWER = "I look it up. ", "It is found in the third drawer."
SPEAKS = json.dumps(
    {"steps": [calling("search", text=LOOK * 3, chunks=3), {"text": ANSWER, "chunks": 6, "delay_seconds": 0.002}]}
)
FIELDS = {"fields": [{"name": "drawer", "value": 3}]}
SUBMITS = json.dumps({"steps": [calling(("submit_result", FIELDS), text=LOOK, chunks=2)]})
DELIVERED = '"drawer"'


@pytest.fixture(params=USUALLY_AND_LONG, scope="module")
def size(request: pytest.FixtureRequest) -> Size:
    """Of each door's test."""
    return Size(100, 20) if request.param == "long" else Size(12, 12)


@pytest.fixture(scope="module")
async def url(here: Stack) -> AsyncIterator[str]:
    async with serving(here, requests_per_second=0.0) as address:
        yield address


@pytest.fixture
async def agents(tenant: Tenant, size: Size) -> AsyncIterator[list[AgentId]]:
    """Agents whose tool answers at once."""
    await put_tool(tenant.pool, tenant.project, definition())
    made = await tenant.agents("player", size.at_once, allowed_tools=["search"])
    answering = set[asyncio.Task[object]]()

    async def on_command(msg: Msg) -> None:
        call = Command(msg.subject, msg.data, dict(msg.headers or {})).call
        report = {"tool_call_id": call, "status": "success", "result": "found"}
        answering.add(asyncio.create_task(tenant.client.request("report", report)))

    subscription = await tenant.stack.conn.subscribe(f"cg.v1r4.{tenant.project}.*.cmd.tool.>", on_command)
    yield made
    await tenant.stack.conn.unsubscribe(subscription)
    await asyncio.gather(*answering)


class Asker:
    """One client of each protocol, for one turn: raises unless the turn's whole answer came before its end."""

    def __init__(self, url: str, token: str, agent: AgentId, script: str) -> None:
        self.url, self.token, self.agent, self.script = url, token, agent, script
        self.answer = DELIVERED if script == SUBMITS else ANSWER

    def is_whole(self, text: str) -> None:
        assert self.answer in text, f"the end came without the answer: {text!r}"

    async def v1(self) -> None:
        folded = Folded()
        async with client(self.url, self.token) as web:
            made = await web.post("/v1/turns", json={"agent_id": self.agent, "instruction": self.script})
            async with web.stream("GET", f"/v1/turns/{made.json()['agent_turn_id']}/events") as stream:
                async for sent in events_of(stream):
                    folded.take(sent)
        assert folded.order[-1] == "outcome"
        assert folded.outcome is not None
        assert (folded.lost, folded.doubled) == (0, 0)
        self.is_whole(json.dumps([*folded.cards.values()]).replace('\\"', '"'))
        if self.script == SPEAKS:
            assert {LOOK * 3, ANSWER} >= {*folded.text.values()}  # a step without chunks is told by its cards
            assert [card["type"] for card in folded.cards.values()].count("tool.result") == 1

    async def chat(self) -> None:
        body = {"model": self.agent, "stream": True, "messages": [{"role": "user", "content": self.script}]}
        text, ended = "", False
        async with (
            client(self.url, self.token) as web,
            web.stream("POST", "/openai/v1/chat/completions", json=body) as stream,
        ):
            async for line in stream.aiter_lines():
                if not line.startswith("data: "):
                    continue
                assert not ended
                if line == "data: [DONE]":
                    ended = True
                    continue
                [choice] = json.loads(line.removeprefix("data: "))["choices"]
                text += choice["delta"].get("content", "")
        assert ended
        self.is_whole(text)

    async def responses(self) -> None:
        text, kinds = "", list[str]()
        body = {"model": self.agent, "stream": True, "input": self.script}
        async with (
            client(self.url, self.token) as web,
            web.stream("POST", "/openai/v1/responses", json=body) as stream,
        ):
            async for sent in events_of(stream):
                kinds.append(sent.event)
                if sent.event == "response.output_text.delta":
                    text += sent.data["delta"]
                elif sent.event == "response.completed":
                    last = sent.data["response"]["output"][-1]
                    self.is_whole("".join(part["text"] for part in last["content"]))
        assert kinds[-1] == "response.completed"
        self.is_whole(text)

    async def a2a(self) -> None:
        async with a2a_client(self.url, self.token, self.agent) as (made, _):
            heard = await Heard().hear(made.send_message(saying(self.script)))
        assert heard.state == "TASK_STATE_COMPLETED"
        assert heard.ended
        assert heard.artifact is not None
        self.is_whole(str(heard.artifact))
        self.is_whole(str(heard.last_update))  # of which some clients keep nothing else

    async def agui(self) -> None:
        async with client(self.url, self.token) as web:
            ran = await FrontEnd(web, self.agent).run(self.script)
        assert ran.outcome == "success"
        self.is_whole(ran.said[-1][1])
        if self.script == SPEAKS:
            assert [role for role, _ in ran.said] == ["user", "assistant", "tool", "assistant"]

    async def mcp(self) -> None:
        heard = list[str]()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            assert (progress, total) == (len(heard) + 1, None)
            heard.append(message or "")

        async with Door(self.url, self.token, SESSIONS).client() as made:
            asked: dict[str, Any] = {"instruction": self.script}
            answer = told(await made.call_tool(self.agent, asked, progress_callback=on_progress))
        assert answer["status"] == "success"
        self.is_whole(json.dumps(answer))
        steps = 2 if self.script == SPEAKS else 1
        assert heard == [*(f"step {n} is done" for n in range(1, steps + 1)), "the turn ended: success"]


DOORS: dict[str, Callable[[Asker], Awaitable[None]]] = {
    "v1": Asker.v1,
    "chat": Asker.chat,
    "responses": Asker.responses,
    "a2a": Asker.a2a,
    "agui": Asker.agui,
    "mcp": Asker.mcp,
}


@pytest.mark.parametrize("door", list(DOORS))
async def test_each_end_comes_after_all_of_the_turn(
    door: str, url: str, tenant: Tenant, agents: list[AgentId], size: Size
) -> None:
    token = await token_of(tenant.stack, tenant.project)
    failures = list[str]()

    async def ask(number: int) -> None:
        script = SUBMITS if number % 2 else SPEAKS
        try:
            await DOORS[door](Asker(url, token, agents[number % size.at_once], script))
        except (AssertionError, httpx.HTTPError) as error:
            failures.append(f"{number}: {error}"[:600])

    for first in range(0, size.turns, size.at_once):
        await asyncio.gather(*(ask(number) for number in range(first, first + size.at_once)))
    assert not failures, f"{len(failures)} of {size.turns}:\n" + "\n".join(failures[:5])
