"""People who decide about the calls of a test's agents."""

from dataclasses import dataclass
from typing import Any

from tests.support.conditions import until
from tests.support.tenants import Tenant
from turnstile.ledger.people.interrupt_views import list_interrupts
from turnstile.schema.access import Caller
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import DecideReply, Interrupt, InterruptStatus
from turnstile.schema.states import ReplyStatus


@dataclass
class Person:
    """A principal who answers what turns ask."""

    tenant: Tenant
    name: str = "dora"

    async def asked(self, count: int = 1) -> list[Interrupt]:
        """Wait until so many questions of the project are open; returns them, the oldest first."""

        async def there() -> list[Interrupt] | None:
            found = [each for each in await self.all() if each.status is InterruptStatus.OPEN]
            return found if len(found) >= count else None

        return await until(there, 25, f"{count} questions are open")

    async def closed(self) -> list[Interrupt]:
        """The questions of the project that are closed, the oldest first."""
        return [each for each in await self.all() if each.status is not InterruptStatus.OPEN]

    async def all(self) -> list[Interrupt]:
        """The questions of the project, the oldest first."""
        project = self.tenant.project
        found = await self.tenant.pool.run(lambda conn: list_interrupts(conn, project, row_limit=1000))
        return list(found)[::-1]

    async def answer(self, asked: Interrupt, decision: Decision = Decision.APPROVE, **fields: Any) -> DecideReply:
        """Decide; returns the reply, accepted or not. It names the digest unless `fields` say otherwise."""
        payload = {"interrupt_id": asked.interrupt_id, "decision": decision, "action_digest": asked.action_digest}
        caller = Caller(self.name)
        return DecideReply.model_validate(await self.tenant.client.request("decide", payload | fields, caller=caller))

    async def decide(self, asked: Interrupt, decision: Decision = Decision.APPROVE, **fields: Any) -> DecideReply:
        """Decide, which must be accepted."""
        reply = await self.answer(asked, decision, **fields)
        assert reply.status is ReplyStatus.ACCEPTED, reply
        return reply

    async def refusal(self, asked: Interrupt, decision: Decision = Decision.APPROVE, **fields: Any) -> str | None:
        """The code of why a decision is refused."""
        reply = await self.answer(asked, decision, **fields)
        assert reply.status is ReplyStatus.REJECTED, reply
        return reply.error_code
