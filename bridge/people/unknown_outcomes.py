"""The rule `outcome`: calls of which nobody knows whether they were done (protocol §6, report; §8).

A call of a tool that must not be run twice, which a replica began to run, is not sent again. Whoever runs it answers on
a core subject of that call; where nobody is there, the replica has died, and a person is asked, or the call fails. A
replica that is there and does not answer counts as running it. NATS away: nothing is concluded.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import nats.errors

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.ledger.people.unknown_calls import SettledCall, UnsureCall, settle_unknown
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import AgentKey
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.schema.cards import ToolCallContent
from turnstile.schema.errors import BadRequest
from turnstile.schema.people.digests import NotCanonical, action_digest
from turnstile.schema.people.interrupts import InterruptEvent, InterruptReason
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import Message, TurnAddress
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection

_ASK_SECONDS = 2.0
_AGAIN_SECONDS = 0.5
"""A replica that has just found its connection again may not have subscribed yet."""
_TARGET_TOKENS = 2


@dataclass(frozen=True, slots=True)
class UnknownOutcomes:
    """What the rule needs: who runs a call is asked over NATS."""

    pool: Pool
    conn: NatsConnection
    publisher: Publisher

    async def settle(self, calls: Sequence[UnsureCall]) -> tuple[int, list[AgentKey]]:
        """Settle those that nobody runs; returns how many, and the agents whose calls have a result now."""
        verdicts = [await self._settle(c) for c in calls]
        answered = [c for c, verdict in zip(calls, verdicts, strict=True) if verdict == "answered"]
        return sum(v != "settled" for v in verdicts), [(c.project_id, c.agent_id) for c in answered]

    async def _settle(self, call: UnsureCall) -> str:
        content = None if call.content is None else ToolCallContent.model_validate(call.content)
        if content is None or await self._may_run(call, content.target_subject or ""):
            return "settled"
        try:
            digest = action_digest(
                call.tool_call_id, content.tool_name, content.target_subject or "", content.arguments
            )
        except NotCanonical:  # nobody can be asked about what has no exact form
            digest = None
        settled = await self.pool.run(lambda conn: settle_unknown(conn, call, _question(call), digest))
        hit(Fault.OUTCOME_SETTLED)
        if settled.verdict == "asked":
            await publish_best_effort(self.publisher, _asked(call, settled, digest))
        hit(Fault.OUTCOME_PUBLISHED)
        return settled.verdict

    async def _may_run(self, call: UnsureCall, target: str) -> bool:
        """Whether somebody runs the call; true also if that is not known now."""
        try:
            rest = subjects.parse(target).rest
            if rest[0] != "tool" or len(rest) <= _TARGET_TOKENS:
                return True
            subject = subjects.tool_presence(
                call.project_id, call.channel_id, rest[1], ".".join(rest[2:]), call.tool_call_id
            )
        except BadRequest:
            return True
        for last in (False, True):
            try:
                await self.conn.request(subject, b"", timeout=_ASK_SECONDS)
            except nats.errors.NoRespondersError:
                if not last:
                    await asyncio.sleep(_AGAIN_SECONDS)
            except NATS_TROUBLE:
                return True
            else:
                return True
        return False


def _question(call: UnsureCall) -> str:
    began = f"{call.begun_at:%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"The tool {call.tool_name} began this call at {began} and died. Nobody knows whether it was done. "
        "approve: send it again; respond: its result, if you know it; reject: it failed."
    )


def _asked(call: UnsureCall, settled: SettledCall, digest: str | None) -> Message:
    assert settled.interrupt_id is not None  # noqa: S101 -- the verdict says so
    assert settled.expires_at is not None  # noqa: S101 -- as above
    event = InterruptEvent(
        interrupt_id=settled.interrupt_id,
        agent_id=call.agent_id,
        agent_turn_id=call.agent_turn_id,
        step_id=call.step_id,
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        reason=InterruptReason.CONFIRMATION,
        action_digest=digest,
        expires_at=settled.expires_at,
    )
    return TurnAddress.of(call, call.context_headers, SENDER).interrupt(event)
