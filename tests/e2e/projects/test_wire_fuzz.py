"""Whatever is sent to a running bridge: it answers or terminates it, stays alive and small, and writes nothing by half.

Verbs as requests and as commands, doorbells, UI actions, and reports and cards that a v1r4 tool wrote by SQL. What
reads them is tried much more often in tests/transport/test_wire_fuzz.py.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import asyncpg
import pytest

from tests.support.conditions import until
from tests.support.fuzz import MODELS, Dice, Report, Tally
from tests.support.ledger.invariants import assert_invariants
from tests.support.memory import resident_bytes
from tests.support.processes.process import Processes
from tests.support.processes.stack import QUICK, Stack
from tests.support.tenants import ALICE, CHANNEL, Tenant, new_tenant
from tests.support.tools import Hand, calling, hand_of
from turnstile.schema.ids import AgentId, uuid7
from turnstile.schema.interface.catalog import VERBS
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import Wakeup
from turnstile.schema.wire.inbox import ReportPayload
from turnstile.schema.wire.ui_actions import UiAction
from turnstile.transport.connection import NATS_TROUBLE
from turnstile.transport.json_messages import decode_object
from turnstile.transport.streams import COMMANDS_CONSUMER, UI_ACTIONS_CONSUMER, wakeup_consumer

# A stack that serves UI actions.
pytestmark = pytest.mark.stack({**QUICK, "bridge": {**QUICK["bridge"], "ui_actions": True}})

AT_ONCE, VOLLEY = 24, 100
GROWTH_BYTES = 48_000_000
SECONDS = 20.0
"""For one answer, on a machine that does other things, too."""


@dataclass
class Sender:
    """Sends the case of a number in one of five ways."""

    hand: Hand
    turn: str
    tally: Tally = field(default_factory=Tally)
    commands: int = 0
    refused_reports: int = 0

    @property
    def tenant(self) -> Tenant:
        """Whose project it is."""
        return self.hand.tenant

    async def send(self, number: int) -> None:
        """One case."""
        dice = Dice.of(number)
        ways = [self.request] * 5 + [self.command] * 2 + [self.doorbell, self.press, self.write]
        await ways[number % len(ways)](dice)

    async def request(self, dice: Dice) -> None:
        """A verb by request: there is an answer, with a code where it is a refusal."""
        verb = dice.pick.choice(VERBS)
        # a report's refusals are counted in the ledger, but not those that never came to the verb
        told = {} if verb.name == "report" else _sendable(dice)
        subject = f"cg.v1r4.{self.tenant.project}.{CHANNEL}.req.sys.bridge.{verb.name}"
        try:
            data = self._payload(dice, verb.name)
            answer = await self.tenant.stack.conn.request(subject, data, timeout=SECONDS, headers=told)
        except NATS_TROUBLE as error:
            raise AssertionError(f"{verb.name} was not answered") from error
        reply = decode_object(answer.data)
        code = reply.get("error_code")
        assert reply["status"] in {"accepted", "rejected", "busy"}, reply
        assert (reply["status"] == "accepted") == (code is None), reply
        assert code is None or reply["error"], reply
        self.refused_reports += verb.name == "report" and reply["status"] == "rejected"
        self.tally.count(f"request {verb.name}", str(code or "accepted"))

    async def command(self, dice: Dice) -> None:
        """A verb as a durable command: its ack is looked for at the end."""
        verb = dice.pick.choice([v for v in VERBS if v.durable])
        subject = subjects.bridge_command(self.tenant.project, CHANNEL, verb.name)
        await self._store(subject, self._payload(dice, verb.name), _sendable(dice))
        self.commands += 1

    async def doorbell(self, dice: Dice) -> None:
        """Taken or terminated."""
        [target] = self.tenant.stack.settings.worker.worker_targets
        subject = subjects.wakeup(self.tenant.project, CHANNEL, target)
        await self._store(subject, dice.payload(Wakeup), _sendable(dice))
        self.tally.count("doorbell", "stored")

    async def press(self, dice: Dice) -> None:
        """A UI action."""
        await self._store(subjects.ui_action(self.tenant.project, CHANNEL), dice.payload(UiAction), _sendable(dice))
        self.tally.count("UI action", "stored")

    async def write(self, dice: Dice) -> None:
        """A report as a tool of v1r4 writes it, or nearly, with a card that may say anything."""
        card, call = uuid7(), self.hand.commands[0].call
        content, metadata = (
            dice.odd(),
            {"type": dice.pick.choice(["tool.result", "x"]), "role": "tool", "author_id": "tool.search"},
        )
        payload = dice.bent({**dice.valid(ReportPayload), "tool_call_id": call, "tool_result_card_id": card})
        values = {
            "agent_id": dice.pick.choice([self.hand.agent, "nobody"]),
            "message_type": dice.pick.choice(["tool_result", "timeout", "stop", "turn", "banana"]),
            "correlation_id": dice.pick.choice([call, uuid7(), None]),
            "agent_turn_id": dice.pick.choice([None, "t-1"]),
            "turn_epoch": dice.pick.choice([None, 0, 1, 2**40]),
        }
        try:
            async with self.tenant.pool.connection() as conn:
                await conn.fetch(
                    "INSERT INTO cards (card_id, tenant_id, content, tool_call_id, metadata)"
                    " VALUES ($1, $2, $3, $4, $5)",
                    *(card, self.tenant.project, _stored(content), call, _stored(metadata)),
                )
                await conn.fetch(
                    f"INSERT INTO state.agent_inbox (inbox_id, project_id, payload, {', '.join(values)})"  # noqa: S608
                    " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                    *(uuid7(), self.tenant.project, _stored(payload), *values.values()),
                )
        except asyncpg.IntegrityConstraintViolationError as error:
            self.tally.count("row by SQL", type(error).__name__)
        else:
            self.tally.count("row by SQL", "written")

    def _payload(self, dice: Dice, verb: str) -> bytes:
        data = dice.payload(MODELS[verb])
        for known, mine in ((b'"x"', self.turn), (b'"a-b"', self.hand.commands[0].call)):
            data = data.replace(known, json.dumps(mine).encode())
        return data[: self.tenant.stack.conn.size_limit - 10_000]

    async def _store(self, subject: str, data: bytes, told: dict[str, str]) -> None:
        limit = self.tenant.stack.conn.size_limit - 10_000
        await self.tenant.stack.conn.store(subject, data[:limit], headers={**told, headers.MSG_ID: uuid7()})


def _sendable(dice: Dice) -> dict[str, str]:
    """Headers that a client can send: those of the subject's own project now and then."""
    return {name: each for name, each in dice.headers().items() if each and each.isprintable()}


def _stored(value: object) -> str:
    """JSON as PostgreSQL takes it, for columns that hold anything."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    return text.replace("\\u0000", "").replace("-Infinity", "-1").replace("Infinity", "1").replace("NaN", "0")


async def settled(stack: Stack) -> bool:
    """Whether the bridge has taken all there is."""
    [target] = stack.settings.worker.worker_targets
    for stream, consumer in (
        (subjects.ASK_STREAM, COMMANDS_CONSUMER),
        (subjects.ASK_STREAM, UI_ACTIONS_CONSUMER),
        (subjects.CMD_STREAM, wakeup_consumer(target)),
    ):
        info = await stack.conn.js.consumer_info(stream, consumer)
        if info.num_pending or info.num_ack_pending:
            return False
    return True


@pytest.mark.fuzz
async def test_messages_and_rows_of_any_kind(
    stack: Stack, processes: Processes, fuzz_share: Callable[[float], int], fuzz_report: Report
) -> None:
    tenant, cases, started = new_tenant(stack), fuzz_share(0.06), time.monotonic()
    await tenant.agent("plain", ALICE)
    before = 0
    async with hand_of(tenant, agent=AgentId("demo")) as hand:
        sender = Sender(hand, await hand.suspended(calling("search")))
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with slots:
                await sender.send(number)

        for first in range(0, cases, VOLLEY):
            await asyncio.gather(*(one(number) for number in range(first, min(cases, first + VOLLEY))))
            if first == VOLLEY:
                before = resident_bytes(processes.bridge.pid)
        await until(lambda: settled(stack), 60, "every message is answered or terminated", pause=0.1)
        after = resident_bytes(processes.bridge.pid)
        acks = await tenant.events("sys.bridge.*")
        for ack in acks:
            sender.tally.count(
                f"command {ack.suffix.removesuffix('_ack')}", str(ack.payload["error_code"] or "accepted")
            )
        pressed = await tenant.events("sys.ui.action_ack")
        await tenant.client.request("stop", {"agent_turn_id": sender.turn})
    recorded = await tenant.count("state.rejections", "source LIKE 'request:%' AND error LIKE 'report: %'")
    for line in [
        *sender.tally.lines(),
        f"bridge: {cases} cases, {time.monotonic() - started:.1f} s, {before / 1e6:.0f} MB, then {after / 1e6:.0f} MB",
    ]:
        fuzz_report(line)
    assert len(acks) == sender.commands
    assert recorded == sender.refused_reports
    assert await tenant.count("state.rejections", "error_code IS NULL OR error = ''") == 0
    assert {str(each.payload["status"]) for each in pressed} <= {"accepted", "busy", "rejected", "done"}
    assert after - before < GROWTH_BYTES
    for process in (processes.worker, processes.bridge):
        assert "Traceback" not in process.says()
        assert " failed" not in process.says()
    assert (await new_tenant(stack).run("plain")).deliverable() == "It is done."
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)
