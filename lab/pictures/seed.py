"""The demo project, a bookshop: who works there, two ordinary weeks, and an afternoon at which much goes on at once.

One tool is served by nobody. People with tokens ask for everything over HTTP, and the real system does it; only the
dates of the ordinary turns are written (`seed.sql`).
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Literal

import httpx

from lab.pictures import plays
from turnstile import ToolService
from turnstile.ledger.access.tokens import add_token
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import parse
from turnstile.ledger.roster import add_agent, put_profile, put_tool
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.access import GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId, step_id, tool_call_id
from turnstile.schema.people.approvals import ApprovalRule
from turnstile.schema.profiles import LlmConfig, Memory, Profile
from turnstile.schema.tools import ToolDefinition
from turnstile.sdk.client import BridgeClient

LARGE, SMALL = "scripted/large", "scripted/small"
AGENTS: Mapping[str, tuple[str, str]] = {
    "mira": ("support", "Mira, customers"),
    "jonas": ("accounts", "Jonas, accounts"),
    "ines": ("buying", "Ines, buying"),
    "petra": ("buying", "Petra, spring table"),
    "rafael": ("buying", "Rafael, print buying"),
    "tomas": ("catalogue", "Tomas, catalogue"),
    "lea": ("warehouse", "Lea, warehouse"),
    "otto": ("accounts", "Otto, night shift"),
}
"""Agents with their profile and the name that people see."""
_OVER_50: JsonObject = {"properties": {"amount": {"exclusiveMinimum": 50}}, "required": ["amount"]}


def profiles(target: str) -> list[Profile]:
    """The profiles as they were put, one after the other: `support` has an earlier version."""

    def made(name: str, prompt: str, model: str = LARGE, **fields: object) -> Profile:
        fields = {"max_steps": 8, **fields}
        return Profile.model_validate(
            {
                "name": name,
                "worker_target": target,
                "system_prompt_template": prompt,
                "llm_config": LlmConfig(model=model, max_tokens=2_000, temperature=0.2),
                **fields,
            }
        )

    refunds = ApprovalRule(when=_OVER_50, description="Refund this customer?")
    support = ["order_lookup", "search_handbook", "stock", "refund"]
    helped = (
        "You are {agent_id}, at the desk of a bookshop. Look the order up before you answer.\n"
        "Refunds above 50 € are decided by people.\nAnswer in the customer's language, in at most six sentences."
    )
    return [
        made(
            "support", "You are {agent_id}, at the desk of a bookshop.", SMALL, tags=["desk"], allowed_tools=support[:2]
        ),
        made(
            "support",
            helped,
            tags=["desk"],
            allowed_tools=support,
            memory=Memory(keep="conversation", max_context_tokens=60_000),
            interrupt_on={"refund": refunds},
            instances=True,
        ),
        made(
            "accounts",
            "You keep the books. Pay what is due, and nothing else.",
            tags=["office"],
            allowed_tools=["pay_invoice"],
            interrupt_on={"pay_invoice": ApprovalRule(description="Pay this invoice?", requester_may_decide=True)},
        ),
        made(
            "buying",
            "You buy for a bookshop. Split large questions, and let readers look.",
            tags=["buying"],
            allowed_tools=["fork_join", "ask_human", "sales_by_section", "web_search"],
            delegation_policy=DelegationPolicy(target_profiles=["reader", "scout"]),
            budget={"max_cost_usd": 0.75, "max_turns": 40},
        ),
        made(
            "scout",
            "Look where others do not.",
            tags=["buying"],
            allowed_tools=["fork_join"],
            delegation_policy=DelegationPolicy(target_profiles=["reader"]),
        ),
        made("reader", "Read, and answer in a sentence.", SMALL, tags=["buying"], allowed_tools=["web_search"]),
        made(
            "catalogue",
            "You write for the catalogue: plain, warm, no superlatives.",
            SMALL,
            tags=["web"],
            allowed_tools=["publish_page"],
            interrupt_on={"publish_page": ApprovalRule(description="Publish this page?")},
        ),
        made("warehouse", "You run the dispatch.", SMALL, tags=["warehouse"], allowed_tools=["print_labels", "stock"]),
    ]


async def open_office(pool: Pool, project: ProjectId, target: str, tools: ToolService) -> None:
    """Store profiles, agents and tools of the project."""
    for definition in [*tools.definitions(), PRINTER]:
        await put_tool(pool, project, definition)
    for profile in profiles(target):
        await put_profile(pool, project, profile)
    for agent, (profile, name) in AGENTS.items():
        await add_agent(pool, project, AgentId(agent), profile, display_name=name)


PRINTER = ToolDefinition.model_validate(
    {
        "tool_name": "print_labels",
        "description": "Print parcel labels on a printer of the warehouse.",
        "parameters": {
            "type": "object",
            "properties": {
                "printer": {"type": "string", "enum": ["door", "office"]},
                "orders": {"type": "array", "items": {"type": "integer"}},
                "copies": {"type": "integer", "minimum": 1, "maximum": 3},
            },
            "required": ["printer", "orders"],
        },
        "target_subject": "cg.v1r4.{project_id}.{channel_id}.cmd.tool.warehouse.print",
        "options": {"timeout_seconds": 5_400.0, "suspend_timeout_seconds": 5_400.0},
    }
)
"""A tool whose service is down."""


def shop_tools(project: ProjectId, pace: float, telemetry: Telemetry = SILENT) -> ToolService:
    """The tools of the shop; each takes its time, times `pace`."""
    service = ToolService(project, heartbeat_seconds=600, telemetry=telemetry)

    @service.tool(target="shop", suffix="order", timeout_seconds=20)
    async def order_lookup(order: str) -> dict[str, object]:
        """Look up an order with its items, payments and parcels.

        order: The number of the order.
        """
        await asyncio.sleep(0.9 * pace)
        items = [{"title": "The Wall", "price": 24.00}, {"title": "Kairos", "price": 22.90}]
        parcel = {"carrier": "DX", "number": "DX 7719 3302 18", "handed_over": "2026-11-17", "signed": "2026-11-19"}
        return {"order": order, "customer": "A. Lindqvist", "paid": 64.90, "items": items, "parcel": parcel}

    @service.tool(target="shop", suffix="handbook", timeout_seconds=20)
    async def search_handbook(query: str, most: int = 5) -> list[str]:
        """Search the handbook of the shop.

        query: What to look for.
        most: The most passages.
        """
        await asyncio.sleep(0.6 * pace)
        products = [
            f"{query}: refund first, claim from the carrier within seven days.",
            "Refunds above 50 € are decided by a person.",
            "Offer a replacement while the title is in stock.",
        ]
        return products[:most]

    @service.tool(target="shop", suffix="stock", timeout_seconds=20)
    async def stock(title: str) -> dict[str, int]:
        """Count the copies of a title, by shelf.

        title: The title, or its author.
        """
        await asyncio.sleep(0.3 * pace)
        return {f"{title}: prize table": 4, "fiction": 2, "window": 1}

    @service.tool(target="shop", suffix="refund", timeout_seconds=20, repeat="unsafe")
    async def refund(order: str, amount: float, reason: str, *, tell_customer: bool = True) -> str:
        """Refund a customer.

        order: The number of the order.
        amount: How much, in euros.
        reason: What the customer reads.
        tell_customer: Whether to send a mail.
        """
        await asyncio.sleep(0.8 * pace)
        return f"{amount:.2f} € refunded for {order} ({reason}); mail: {tell_customer}; carrier claim DX-2207 opened"

    @service.tool(target="shop", suffix="pay", timeout_seconds=20, repeat="unsafe")
    async def pay_invoice(
        supplier: str,
        invoice: str,
        amount: float,
        currency: Literal["EUR", "CHF", "SEK"],
        due: str,
        lines: list[dict[str, str | float]],
        note: str = "",
    ) -> str:
        """Pay an invoice from the business account.

        supplier: Whom to pay.
        invoice: The number of the invoice.
        amount: The gross amount.
        currency: Its currency.
        due: When it is due, as YYYY-MM-DD.
        lines: What was bought, with net amounts.
        note: For the books.
        """
        await asyncio.sleep(0.7 * pace)
        return f"{amount:.2f} {currency} to {supplier} for {invoice}, due {due}: {len(lines)} lines. {note}"

    @service.tool(target="shop", suffix="publish", timeout_seconds=20)
    async def publish_page(path: str, title: str, body: str, visible: Literal["public", "staff"] = "staff") -> str:
        """Publish a page of the web shop.

        path: Its path.
        title: Its title.
        body: Its text.
        visible: Who may read it.
        """
        await asyncio.sleep(0.4 * pace)
        return f"{title} is at {path} for {visible} ({len(body)} characters)"

    @service.tool(target="shop", suffix="sales", timeout_seconds=20)
    async def sales_by_section(month: str) -> dict[str, float]:
        """Net sales of a month by section.

        month: As YYYY-MM.
        """
        await asyncio.sleep(1.1 * pace)
        scale = 1.0 if month.startswith("2026") else 0.94
        return {name: round(net * scale, 2) for name, net in (("fiction", 41_280.0), ("children", 28_910.0))}

    @service.tool(target="shop", suffix="search", timeout_seconds=20)
    async def web_search(query: str) -> list[str]:
        """Search the web.

        query: What to look for.
        """
        await asyncio.sleep(0.5 * pace)
        return [f"{query}: price list, valid until March", f"{query}: terms of delivery"]

    return service


DAYS = 14
_FROM, _UNTIL = 8, 19
_SUNDAY = 6
_BY_TRIGGERS = "SET LOCAL session_replication_role = replica"


def moments(count: int, now: datetime) -> list[datetime]:
    """So many moments of the last two weeks, the oldest first: in opening hours, not on Sundays, nor just now."""
    drawn, times = Random(count), list[datetime]()  # noqa: S311 -- pictures, the same each time
    latest = now - timedelta(hours=1)
    while len(times) < count:
        day = (now - timedelta(days=drawn.triangular(0, DAYS, 1))).replace(hour=0, minute=0, second=0, microsecond=0)
        at = day + timedelta(hours=drawn.triangular(_FROM, _UNTIL))
        if at < latest and at.weekday() != _SUNDAY:
            times.append(at)
    return sorted(times)


async def age(pool: Pool, project: ProjectId, turns: Sequence[AgentTurnId]) -> None:
    """Move these ended turns of the project into the past, the first the farthest; needs the database's owner."""
    now = datetime.now(UTC)
    ages = [(now - at).total_seconds() for at in moments(len(turns), now)]
    queries = parse(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
    async with pool.connection() as conn, conn.transaction():
        await conn.fetch(_BY_TRIGGERS)
        for query in queries.values():
            await query.many(conn, project_id=project, turns=list(turns), ages=ages)


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
            for interrupt in answer.raise_for_status().json()["interrupts"]:
                if interrupt["agent_turn_id"] == turn:
                    return interrupt
            await asyncio.sleep(_PAUSE_SECONDS)
        raise TimeoutError(f"turn {turn} asks nobody")

    async def decide(self, who: str, interrupt: dict[str, Any], decision: str, **fields: object) -> None:
        """Decide what a turn asks."""
        body = {"decision": decision, "action_digest": interrupt["action_digest"], **fields}
        answer = await self.web[who].post(f"/v1/interrupts/{interrupt['interrupt_id']}/decision", json=body)
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
            headers = {"authorization": f"Bearer {secret.text}"}
            web[name] = await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=headers, timeout=30))
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
        interrupt = await shop.waiting_for(turn)
        shop.places["refund_question"] = interrupt["interrupt_id"]
        await asyncio.sleep(shop.pause)
        await shop.decide("sam", interrupt, "approve")
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
    stocktaking = {"agent_id": "lea", "instruction": plays.STOCK, "cron": "0 9 2 1 *", "timezone": "Europe/Berlin"}
    (await shop.web["nadia"].put("/v1/schedules/stocktaking", json=stocktaking)).raise_for_status()


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
        for turn in listed.raise_for_status().json()["turns"]:
            if turn["ended_at"] is None:
                await shop.client.request("stop", {"agent_turn_id": turn["agent_turn_id"], "cascade": "all"})
