"""People of a project in a test: what they are asked, and who decides."""

from dataclasses import dataclass
from typing import Any

from tests.support.conditions import until
from tests.support.tenants import Tenant
from tests.support.tools import Hand, call_of, definition
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, InterruptId
from turnstile.schema.people.interrupts import DecideReply
from turnstile.sdk.client import accepted
from turnstile.sdk.interrupts import Interrupt
from turnstile.sdk.nats_turns import NatsBackend
from turnstile.sdk.turns import Client

LARGE: dict[str, Any] = {"when": {"properties": {"amount": {"minimum": 100}}, "required": ["amount"]}}
PAY = definition(
    "pay",
    parameters={
        "type": "object",
        "properties": {"amount": {"type": "number", "maximum": 10_000}, "account": {"type": "string"}},
        "required": ["amount"],
    },
    options={"args": {"fixed": {"account": "of {project_id}"}}},
)


def people(tenant: Tenant) -> Client:
    """A program of the project's people, over NATS."""
    return Client.over(NatsBackend(tenant.stack.conn, tenant.client))


async def asked(hand: Hand, turn: AgentTurnId, count: int = 1) -> list[Interrupt]:
    """The questions of a turn once there are so many, in the order of their calls."""

    async def there() -> list[Interrupt] | None:
        found = await people(hand.tenant).interrupts(agent_turn_id=turn)
        return found if len(found) >= count else None

    found = await until(there, 25, f"{count} questions of {turn}")
    return sorted(found, key=lambda each: [call_of(turn, n) for n in range(9)].index(each.view.tool_call_id))


@dataclass(frozen=True)
class Person:
    """A principal of the project, over NATS."""

    tenant: Tenant
    name: str

    async def says(self, interrupt: InterruptId, decision: str, digest: str | None, **more: Any) -> DecideReply:
        """Decide; raises `Refused` with the bridge's code."""
        made: JsonObject = {"interrupt_id": interrupt, "decision": decision, "action_digest": digest, **more}
        return accepted(DecideReply, await self.tenant.client.request("decide", made, caller=Caller(self.name)))

    async def decides(self, interrupt: Interrupt, decision: str, **more: Any) -> DecideReply:
        """Decide what was shown."""
        return await self.says(interrupt.id, decision, interrupt.view.action_digest, **more)
