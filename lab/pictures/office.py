"""Who works in the demo project: profiles, agents and tools, of which one is served by nobody."""

import asyncio
from collections.abc import Mapping
from typing import Literal

from turnstile import ToolService
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.roster import add_agent, put_profile, put_tool
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.ids import AgentId, ProjectId
from turnstile.schema.people.approvals import ApprovalRule
from turnstile.schema.profiles import LlmConfig, Memory, Profile
from turnstile.schema.tools import ToolDefinition

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
        found = [
            f"{query}: refund first, claim from the carrier within seven days.",
            "Refunds above 50 € are decided by a person.",
            "Offer a replacement while the title is in stock.",
        ]
        return found[:most]

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
        reason: What the customer is told.
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
