"""Turns that pass every fault point, also if a process dies meanwhile, and the rows that they leave.

`Player` repeats a request that got no reply or an error, as any client would.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from tests.support.conditions import until
from tests.support.processes.stack import QUICK, Config, Stack
from tests.support.tenants import Tenant, new_tenant
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.runtime import faults
from turnstile.runtime.faults import Fault
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId, uuid7

Kind = Literal["plain", "answered", "silent", "stopped"]
"""It streams a text; its two calls are answered in order; nobody answers; it is stopped while it waits."""

BEGINS = (Fault.ENQUEUE_COMMITTED, Fault.ENQUEUE_PUBLISHED, Fault.CLAIM_TAKEN, Fault.WORKFLOW_STARTED)
STEPS = (Fault.STEP_BEGUN, Fault.MODEL_ANSWERED)
_CALLS = (Fault.STEP_COMMITTED, Fault.STEP_PUBLISHED, Fault.CALLS_COMMITTED, Fault.CALLS_PUBLISHED)
REPORTS = (Fault.REPORT_COMMITTED, Fault.REPORT_PUBLISHED, Fault.WORKFLOW_SIGNALLED, Fault.REPORTS_APPLIED)
_TIMEOUTS = (Fault.TIMEOUTS_INJECTED, Fault.REPORTS_APPLIED)
_STOPS = (Fault.TREE_MARKED, Fault.STOP_COMMITTED, Fault.STOP_PUBLISHED, Fault.WORKFLOW_SIGNALLED)
ENDS = (Fault.TURN_FINISHED, Fault.TURN_PUBLISHED, Fault.TURN_ANNOUNCED)
PASSED: dict[Kind, tuple[Fault, ...]] = {
    "plain": (*BEGINS, *STEPS, *ENDS),
    "answered": (*BEGINS, *STEPS, *_CALLS, *REPORTS, *ENDS),
    "silent": (*BEGINS, *STEPS, *_CALLS, *_TIMEOUTS, *ENDS),
    "stopped": (*BEGINS, *STEPS, *_CALLS, *_STOPS, *ENDS),
}
"""The points that a turn of each kind passes if nothing fails; it passes no others."""
POINTS = [point for point in Fault if any(point in passed for passed in PASSED.values())]
"""The points of turns; those of the message pump are in its own tests."""
KINDS: dict[Fault, Kind] = {
    Fault.TIMEOUTS_INJECTED: "silent",
    Fault.TREE_MARKED: "stopped",
    Fault.STOP_COMMITTED: "stopped",
    Fault.STOP_PUBLISHED: "stopped",
}
"""The kind of turn that passes a point; points that are missing here are passed by a turn with answered calls."""

GUESS = calling("nosuch", text="First a guess.")
DONE: JsonObject = {"text": "All is done."}
LINES: dict[Kind, list[JsonObject]] = {
    "plain": [{"text": "one two three four five six", "chunks": 6, "delay_seconds": 0.01}],
    "answered": [GUESS, calling("search", "search"), DONE],
    "silent": [GUESS, calling("silent", "silent"), DONE],
    "stopped": [GUESS, calling("search", "search"), DONE],
}
TOOLS = [definition(options={"suspend_timeout_seconds": 90}), definition("silent")]
CALLS = 2
PATIENCE_SECONDS = 150.0
HASTY: Config = {
    **QUICK,
    "worker": {**QUICK["worker"], "activity_heartbeat_timeout_seconds": 1.5},
    "tools": {"suspend_timeout_seconds": 1.0},
    "bridge": {
        **QUICK["bridge"],
        "pending_wakeup_seconds": 0.5,
        "dispatched_retry_seconds": 1.0,
        "inbox_processing_timeout_seconds": 1.0,
        "stop_grace_seconds": 30.0,
        "command_retry_seconds": 3.0,
    },
}
"""Settings with which the safety net mends soon."""

Rows = dict[Kind, dict[str, Any]]


@dataclass
class Player:
    """Runs a turn of a new project to its end."""

    hand: Hand
    kind: Kind

    @property
    def tenant(self) -> Tenant:
        """Its project."""
        return self.hand.tenant

    async def play(self) -> dict[str, Any]:
        """Run the turn from its enqueue to its end; returns the rows that it left."""
        instruction = json.dumps({"steps": LINES[self.kind]})
        payload: JsonObject = {"agent_id": self.hand.agent, "instruction": instruction, "correlation_id": uuid7()}
        turn = AgentTurnId(str((await self.insist("enqueue", payload))["agent_turn_id"]))
        calls = [] if self.kind == "plain" else [call_of(turn, index, step=2) for index in range(CALLS)]
        for call in calls:
            await self.hand.called(call, timeout=PATIENCE_SECONDS)
        if self.kind == "answered":
            for number, call in enumerate(calls):
                await self.insist("report", {"tool_call_id": call, "status": "success", "result": {"n": number}})
        elif self.kind == "stopped":
            await self.insist("stop", {"agent_turn_id": turn})
        await self.tenant.ended(turn, timeout=PATIENCE_SECONDS)
        return await rows_of(self.tenant, turn)

    async def insist(self, verb: str, payload: JsonObject) -> JsonObject:
        """Repeat the request until a bridge replies without an error; returns the reply."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    reply = await self.tenant.client.request(verb, payload, timeout=1.0)
                except ServerUnavailable:
                    reply = JsonObject(status="error")
                if reply["status"] == "accepted":
                    return reply
                assert reply["status"] == "error", reply
                await asyncio.sleep(0.1)


@asynccontextmanager
async def player_of(stack: Stack, kind: Kind) -> AsyncGenerator[Player]:
    """A player in a project of its own."""
    async with hand_of(new_tenant(stack), *TOOLS) as hand:
        yield Player(hand, kind)


async def played(stack: Stack, kind: Kind) -> dict[str, Any]:
    """The rows of a turn of this kind, from its enqueue to its end."""
    async with player_of(stack, kind) as player:
        return await player.play()


CARDS: dict[Kind, int] = {"plain": 4, "answered": 11, "silent": 11, "stopped": 10}


async def unharmed(stack: Stack) -> Rows:
    """Run each kind of turn without faults in this process; returns its rows. Each passes its points and no others."""
    found: Rows = {}
    for kind, points in PASSED.items():
        with noted() as passed:
            found[kind] = await played(stack, kind)
            await until(lambda passed=passed: _announced(passed), 25, "the turn has passed its last point")
        assert passed == set(points), kind
    assert {kind: len(each["cards"]) for kind, each in found.items()} == CARDS
    assert [dict(each["events"]) for each in found.values()] == [*[{"success": 1}] * 3, {"canceled": 1}]
    return found


async def _announced(passed: set[Fault]) -> bool:
    return Fault.TURN_ANNOUNCED in passed


@contextmanager
def noted() -> Generator[set[Fault]]:
    """The fault points that this process passes during the block; none injects a fault."""
    passed: set[Fault] = set()

    def note(point: Fault) -> bool:
        passed.add(point)
        return False

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(faults, "_first_time", note)
        patched.setenv("TURNSTILE_FAULTS", ",".join(f"{point}=kill" for point in Fault))
        yield passed


async def rows_of(tenant: Tenant, turn: AgentTurnId) -> dict[str, Any]:
    """All rows of the turn in the ledger and the event stream, with its ids replaced by their places.

    Of the cards' order only the types are compared: results of concurrent calls are in the order in which they were
    applied. If a bridge dies after it claimed the first report, the second overtakes it; and results that one statement
    made (timeouts, cancellations) are in the order of their ids, which differ between turns.
    """
    names = {turn: "TURN", tenant.project: "PROJECT"}
    names |= {call_of(turn, index, step): f"CALL-{step}-{index}" for step in (1, 2) for index in range(CALLS)}

    def named(value: object) -> str:
        text = str(value)
        for found, name in names.items():
            text = text.replace(found, name)
        return text

    async def of(statement: str) -> list[str]:
        return [named(list(row.values())) for row in await tenant.rows(statement, turn)]

    cards = await of(
        "SELECT c.card_id, c.content::text AS content, c.tool_call_id, c.tool_calls::text AS calls,"
        " c.metadata ->> 'type' AS type, c.metadata ->> 'role' AS role, c.metadata ->> 'author_id' AS author,"
        " c.metadata ->> 'step_id' AS step FROM state.turn_outcomes o"
        " JOIN box_cards b ON b.box_id = o.output_box_id JOIN cards c USING (card_id)"
        " WHERE o.agent_turn_id = $1 ORDER BY b.position"
    )
    return {
        "cards": sorted(cards),
        "types": await of(
            "SELECT c.metadata ->> 'type' AS type FROM state.turn_outcomes o"
            " JOIN box_cards b ON b.box_id = o.output_box_id JOIN cards c USING (card_id)"
            " WHERE o.agent_turn_id = $1 ORDER BY b.position"
        ),
        "outcome": await of(
            "SELECT status, error_code, error, turn_epoch, deliverable_card_id, tool_result_card_id"
            " FROM state.turn_outcomes WHERE agent_turn_id = $1"
        ),
        "head": await of(
            "SELECT status, turn_epoch, waiting_tool_count FROM state.agent_state_head h WHERE EXISTS"
            " (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = $1 AND i.project_id = h.project_id)"
        ),
        "waiting": sorted(
            await of(
                "SELECT tool_call_id, wait_status, tool_result_card_id FROM state.turn_waiting_tools"
                " WHERE agent_turn_id = $1"
            )
        ),
        "inbox": sorted(
            await of(
                "SELECT message_type, correlation_id = agent_turn_id AS own, status, last_error, turn_epoch"
                " FROM state.agent_inbox WHERE agent_turn_id = $1"
            )
        ),
        "edges": sorted(
            await of(
                "SELECT primitive, edge_phase, CASE primitive WHEN 'enqueue' THEN '' ELSE correlation_id END AS key,"
                " recursion_depth FROM state.execution_edges WHERE target_agent_turn_id = $1"
            )
        ),
        "steps": await of("SELECT step_id, status, error FROM state.agent_steps WHERE agent_turn_id = $1 ORDER BY 1"),
        "events": Counter(named(event.payload["status"]) for event in await tenant.events("agent.*.task")),
    }
