"""What happens in the demo project: two ordinary weeks, and an afternoon at which much is going on at once.

Everything is asked for over HTTP by people with tokens, and done by the real system; only the dates of the ordinary
turns are written (`ages.py`).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from lab.pictures import plays
from lab.pictures.ages import age
from lab.pictures.office import AGENTS, open_office, shop_tools
from turnstile.ledger.access.tokens import add_token
from turnstile.ledger.pool import Pool
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.access import GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, ProjectId, step_id, tool_call_id
from turnstile.sdk.client import BridgeClient

PEOPLE = {
    "nadia": (GatewayRole.OPERATOR, "Nadia, operations"),
    "sam": (GatewayRole.APPROVER, "Sam, accounts"),
    "shop": (GatewayRole.CLIENT, "web shop"),
    "vera": (GatewayRole.VIEWER, "Vera, audit"),
}
"""Who has a token: its role and label."""
CUSTOMER, DESK = "customer-48392", "mira"
_SUBJECTS = (
    "a debut novel from Lagos",
    "a cookbook of winter soups",
    "an atlas of rivers",
    "a biography of Emmy Noether",
    "poems for the underground",
    "a picture book about moles",
    "a history of bread",
    "essays on sleep",
    "a thriller in the archives",
    "letters between two painters",
)
_EVERYDAY = (
    ("tomas", "Describe for the catalogue: {what}, no. {number}."),
    ("mira", "Answer the question of a customer: {what}, no. {number}."),
    ("tomas", "Write three lines for the newsletter: {what}, no. {number}."),
    ("rafael", "Ask for an offer: {what}, no. {number}."),
    ("jonas", "Check the delivery note: {what}, no. {number}."),
    ("ines", "Sum up the reviews: {what}, no. {number}."),
)
_TRIES, _PAUSE_SECONDS, _AT_ONCE = 600, 0.1, 12


@dataclass
class Shop:
    """The demo project, as its people use it."""

    project: ProjectId
    pool: Pool
    client: BridgeClient
    url: str
    tokens: dict[str, str]
    web: dict[str, httpx.AsyncClient]
    pause: float = 2.0
    """Seconds that a person takes to decide."""
    turns: dict[str, AgentTurnId] = field(default_factory=dict[str, AgentTurnId])
    """Turns worth a picture, by name."""
    places: dict[str, str] = field(default_factory=dict[str, str])
    """What turns ask people (`{turn}_question`), and calls that wait (`{turn}_call`), by name."""

    def address(self, path: str) -> str:
        """An address with the ids of the story in place of their names."""
        return path.format(**self.turns, **self.places)

    async def ask(self, who: str, agent: str, instruction: str, **fields: object) -> AgentTurnId:
        """Enqueue a turn; returns its id."""
        body: dict[str, object] = {"agent_id": agent, "instruction": instruction, **fields}
        answer = await self.web[who].post("/v1/turns", json=body)
        answer.raise_for_status()
        return AgentTurnId(answer.json()["agent_turn_id"])

    async def turn(self, turn: AgentTurnId) -> dict[str, Any]:
        """A turn as `/v1` describes it."""
        return (await self.web["nadia"].get(f"/v1/turns/{turn}")).raise_for_status().json()

    async def until(self, turn: AgentTurnId, *statuses: str) -> dict[str, Any]:
        """Wait until the turn is over, or in one of these states; returns it."""
        for _ in range(_TRIES):
            view = await self.turn(turn)
            if view["status"] in statuses or (not statuses and view["announced_at"] is not None):
                return view
            await asyncio.sleep(_PAUSE_SECONDS)
        raise TimeoutError(f"turn {turn} is not {statuses or 'over'}")

    async def waiting_for(self, turn: AgentTurnId) -> dict[str, Any]:
        """The open question of a turn, once it has one."""
        for _ in range(_TRIES):
            answer = await self.web["nadia"].get("/v1/interrupts", params={"status": "open", "limit": 200})
            for each in answer.raise_for_status().json()["interrupts"]:
                if each["agent_turn_id"] == turn:
                    return each
            await asyncio.sleep(_PAUSE_SECONDS)
        raise TimeoutError(f"turn {turn} asks nobody")

    async def decide(self, who: str, asked: dict[str, Any], decision: str, **fields: object) -> None:
        """Decide what a turn asks."""
        body = {"decision": decision, "action_digest": asked["action_digest"], **fields}
        answer = await self.web[who].post(f"/v1/interrupts/{asked['interrupt_id']}/decision", json=body)
        answer.raise_for_status()


@asynccontextmanager
async def open_shop(
    pool: Pool,
    client: BridgeClient,
    url: str,
    nats_url: str,
    project: ProjectId,
    target: str,
    *,
    pace: float = 1.0,
    telemetry: Telemetry = SILENT,
) -> AsyncGenerator[Shop]:
    """The project with its people, agents and tools; nothing was asked yet. `pace` scales how long its tools take."""
    async with AsyncExitStack() as stack:
        tools, stop, ready = shop_tools(project, pace, telemetry), asyncio.Event(), asyncio.Event()
        await open_office(pool, project, target, tools)
        tokens: dict[str, str] = {}
        web: dict[str, httpx.AsyncClient] = {}
        for name, (role, label) in PEOPLE.items():
            secret, _ = await pool.run(lambda conn, role=role, label=label: add_token(conn, project, role, label=label))
            tokens[name] = secret.text
            own = {"authorization": f"Bearer {secret.text}"}
            web[name] = await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=own, timeout=30))
        serving = asyncio.create_task(tools.run(nats_url, stop=stop, ready=ready.set))
        await ready.wait()
        try:
            yield Shop(project, pool, client, url, tokens, web, 2.0 * pace)
        finally:
            stop.set()
            await serving


async def two_weeks(shop: Shop, count: int) -> list[AgentTurnId]:
    """So many everyday turns, ended, over the last two weeks."""
    gate, turns = asyncio.Semaphore(_AT_ONCE), list[tuple[int, AgentTurnId]]()

    async def one(number: int) -> None:
        agent, words = _EVERYDAY[number % len(_EVERYDAY)]
        async with gate:
            what = _SUBJECTS[number % len(_SUBJECTS)]
            turn = await shop.ask("shop", agent, words.format(what=what, number=number + 1))
            turns.append(((await shop.until(turn))["turn_epoch"], turn))

    await asyncio.gather(*(one(number) for number in range(count)))
    ordered = [turn for _, turn in sorted(turns)]  # an agent's turns stay in the order in which it had them
    await age(shop.pool, shop.project, ordered)
    return ordered


async def this_morning(shop: Shop) -> None:
    """What is over: a refund that Sam approved, a tree with a failed branch, a customer's conversation."""

    async def refunded() -> None:
        turn = shop.turns["refund"] = await shop.ask("shop", "mira", plays.SOAKED)
        asked = await shop.waiting_for(turn)
        shop.places["refund_question"] = asked["interrupt_id"]
        await asyncio.sleep(shop.pause)
        await shop.decide("sam", asked, "approve")
        await shop.until(turn)

    async def printers() -> None:
        turn = shop.turns["printers"] = await shop.ask("nadia", "rafael", plays.PRINTERS)
        await shop.until(turn)

    async def stock() -> None:
        await shop.until(await shop.ask("shop", "lea", plays.STOCK))

    await asyncio.gather(printers(), stock(), refunded())
    for words in (plays.GREET, plays.STATUS, plays.CHANGE):
        turn = await shop.ask("shop", DESK, words, conversation_id=CUSTOMER)
        await shop.until(turn)
    shop.turns["customer"] = turn
    wrong: Sequence[JsonObject] = (
        {"tool_call_id": "call_0f3cce11aa", "status": "success", "result": "too late"},
        {"tool_call_id": "call_77aa41d3e0", "status": "failed", "error": {"code": "timeout", "message": "no paper"}},
    )
    for report in wrong:
        await shop.client.request("report", report)
    limit = {"limits": {"max_cost_usd": 5.0, "max_turns": 2_000}}
    (await shop.web["nadia"].post("/v1/budgets/day/limit", json=limit)).raise_for_status()


async def this_afternoon(shop: Shop) -> None:
    """What is going on: streams, calls that wait, questions to people, a tree, a queue, an agent that is paused."""
    await shop.client.request("agent.pause", {"agent_id": "otto"})
    asks: Sequence[tuple[str, str, str, str, Literal["running", "suspended", ""]]] = (
        ("torn", "shop", "mira", plays.TORN, "suspended"),
        ("invoice", "nadia", "jonas", plays.INVOICE, "suspended"),
        ("labels", "shop", "lea", plays.LABELS, "suspended"),
        ("page", "nadia", "tomas", plays.PAGE, "suspended"),
        ("shortlist", "nadia", "petra", plays.SHORTLIST, "suspended"),
        ("paper", "nadia", "rafael", plays.PAPER, "suspended"),
        ("report", "nadia", "ines", plays.REPORT, "running"),
    )
    for name, who, agent, words, _ in asks:
        shop.turns[name] = await shop.ask(who, agent, words)
    shop.turns["queued"] = await shop.ask("shop", "jonas", plays.DAYBOOK)
    shop.turns["paused"] = await shop.ask("shop", "otto", plays.DAYBOOK)
    for name, *_, state in asks:
        await shop.until(shop.turns[name], state)
    for name in ("torn", "invoice", "page", "shortlist"):
        shop.places[f"{name}_question"] = (await shop.waiting_for(shop.turns[name]))["interrupt_id"]
    shop.places["labels_call"] = tool_call_id(step_id(shop.turns["labels"], 1), 0, 1)


async def close_shop(shop: Shop) -> None:
    """Stop what is still going on."""
    for agent in AGENTS:
        listed = await shop.web["nadia"].get("/v1/turns", params={"agent_id": agent, "limit": 20})
        for each in listed.raise_for_status().json()["turns"]:
            if each["ended_at"] is None:
                await shop.client.request("stop", {"agent_turn_id": each["agent_turn_id"], "cascade": "all"})
