"""Arguments that were changed after the approval never run: whoever has a valid approval of X cannot make Y run.

Each try holds a call as the worker does, by policy, and attacks it at random before and after its approval, with every
digest that there is. What the tool would read is compared with what was approved.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from tests.support.ledger.agents import ALICE, PROJECT, add_agents, begin, lease, rows
from tests.support.ledger.invariants import assert_invariants
from tests.support.ledger.people import answer, decide, edit
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import end_by_fallback
from turnstile.ledger.turns.steps import commit_step
from turnstile.ledger.turns.waiting import describe_call
from turnstile.rules.answer import AnsweredCall, ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import StepRequest, Suspend
from turnstile.rules.decide import decide as decide_step
from turnstile.rules.turn_config import TurnConfig
from turnstile.rules.turn_step import StepRecord
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardType, ToolCallContent, read_content
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ToolCallId
from turnstile.schema.people.approvals import ApprovalRule, Decision
from turnstile.schema.people.digests import action_digest
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import SuspendMetadata
from turnstile.schema.tools import ToolRow
from turnstile.schema.turns import TurnRef

PAY = ToolRow(tool_name="pay", target_subject="cg.v1r4.{project_id}.{channel_id}.cmd.tool.pay.run")
FORCED = ToolRow.model_validate(PAY.model_dump() | {"options": {"args": {"fixed": {"account": "ours"}}}})
SUBJECT = f"cg.v1r4.{PROJECT}.public.cmd.tool.pay.run"


@dataclass(frozen=True)
class Held:
    """A call that waits, and the record that suspended its turn."""

    turn: TurnRef
    record: StepRecord
    call: ToolCallId
    arguments: JsonObject
    digest: str

    def with_arguments(self, arguments: JsonObject) -> StepRecord:
        """The same record with other arguments on the call's card."""

        def changed(card: Card) -> Card:
            if card.type != CardType.TOOL_CALL or not isinstance(card.content, dict):
                return card
            return card.model_copy(update={"content": {**card.content, "arguments": arguments}})

        return replace(self.record, cards=[changed(card) for card in self.record.cards])


def arguments_of(dice: random.Random) -> JsonObject:
    """Any arguments."""
    amount: Any = dice.choice([dice.randrange(10**6), dice.random() * 10 ** dice.randrange(-9, 12), True, "5"])
    return {"amount": amount, "to": dice.choice(["the baker", "the bàker", "the b\u0061\u0300ker", "\u202ebaker"])}


async def held_call(pool: Pool, arguments: JsonObject) -> Held:
    """A new turn that waits for a person about this call."""
    turn = await lease(pool)
    await begin(pool, turn)
    config = TurnConfig(
        profile_name="p",
        llm_config=LlmConfig(model="m"),
        max_steps=9,
        must_end_with=[],
        tools={"pay": FORCED},
        interrupt_on={"pay": ApprovalRule()},
    )
    said = ModelAnswer("", "", (AnsweredCall("c", "pay", json.dumps(arguments)),), "stop", {}, None, "unknown", None)
    decision = decide_step(StepRequest(turn, 1, config, (), "", Patience()), said)
    assert isinstance(decision, Suspend)
    [command], [hold] = decision.commands, decision.holds
    assert hold is not None
    held = replace_pin(decision)
    metadata = SuspendMetadata(commands=decision.commands, held=(command.tool_call_id,))
    record = StepRecord(
        *(1, metadata, decision.cards, [command.tool_call_id], datetime.now(UTC)),
        call_waits=decision.waits,
        holds=held.holds,
    )
    await pool.run(lambda conn: commit_step(conn, turn, record))
    return Held(turn, record, command.tool_call_id, {**arguments, "account": "ours"}, str(hold.action_digest))


def replace_pin(decision: Suspend) -> Suspend:
    """Without the pin of the tool's row, which is not there: this is about arguments."""
    return replace(
        decision, holds=tuple(each and each.model_copy(update={"tool_pin": None}) for each in decision.holds)
    )


async def code_of(pool: Pool, held: Held, decision: Decision, digest: str, **fields: Any) -> str:
    """What comes of a decision: `accepted`, or the code of its refusal."""
    try:
        await decide(pool, held.call, answer(decision, action_digest=digest, **fields))
    except Refused as error:
        return error.code
    return "accepted"


async def read_by_tool(pool: Pool, held: Held) -> JsonObject:
    """The arguments that the tool reads."""
    view = await pool.run(lambda conn: describe_call(conn, PROJECT, held.call))
    assert view is not None
    assert isinstance(view.content, dict)
    content = read_content(view.content)
    assert isinstance(content, ToolCallContent)
    return content.arguments


async def attack(pool: Pool, held: Held, dice: random.Random, other: JsonObject, digests: list[str]) -> str:
    """One attempt to run `other` by what is known; returns what was tried."""
    made: JsonObject = {**other, "account": "ours"}
    forged = action_digest(held.call, "pay", SUBJECT, made)
    match dice.randrange(5):
        case 0:
            code = await code_of(pool, held, Decision.APPROVE, dice.choice([forged, *digests]))
            assert code in {"digest_mismatch", "already_decided"}
            return "another digest"
        case 1:
            done = await pool.run(lambda conn: commit_step(conn, held.turn, held.with_arguments(made)))
            assert done.result == "already"
            return "the step again"
        case 2:
            with pytest.raises(asyncpg.PostgresError):
                await rows(
                    pool,
                    "UPDATE public.cards SET content = jsonb_set(content, '{arguments}', $2::jsonb) WHERE card_id = $1",
                    *(f"{held.call}-call", json.dumps(made)),
                )
            return "the card"
        case 3:
            forged_edit = edit(held.turn, held.call, made)
            code = await code_of(pool, held, Decision.EDIT, dice.choice([forged, *digests]), edit=forged_edit)
            assert code in {"digest_mismatch", "already_decided"}
            return "an edit"
        case _:
            with pytest.raises(asyncpg.PostgresError):
                await rows(
                    pool,
                    "INSERT INTO public.cards (card_id, tenant_id, content, tool_call_id, metadata)"
                    " VALUES ($1, $2, $3::jsonb, $4, '{}')",
                    *(f"{held.call}-call", PROJECT, json.dumps({"arguments": made}), held.call),
                )
            return "a second card of its id"


async def tries(pool: Pool, count: int) -> Counter[str]:
    """So many approvals, each attacked before and after; returns what was tried."""
    dice, tried, digests, changed = random.Random(13), Counter[str](), ["0" * 64], 0  # noqa: S311 -- dice of a test
    for _ in range(count):
        x, y = arguments_of(dice), arguments_of(dice)
        if json.dumps(x) == json.dumps(y):
            continue
        held = await held_call(pool, x)
        with pytest.raises(Refused):
            await pool.run(lambda conn, held=held: describe_call(conn, PROJECT, held.call))
        tried[await attack(pool, held, dice, y, digests)] += 1
        assert await code_of(pool, held, Decision.APPROVE, held.digest) == "accepted"
        digests.append(held.digest)
        tried[await attack(pool, held, dice, y, digests)] += 1
        read = await read_by_tool(pool, held)
        changed += action_digest(held.call, "pay", SUBJECT, read) != held.digest
        assert read == held.arguments
        await end_by_fallback(pool, held.turn, TurnStatus.CANCELED, "stopped", "over")
    assert changed == 0
    return tried


@pytest.fixture
async def ready(pool: Pool) -> Pool:
    """A ledger with one agent."""
    await add_agents(pool, ALICE)
    return pool


async def test_arguments_changed_after_the_approval_never_run(ready: Pool) -> None:
    tried = await tries(ready, 20)
    assert sum(tried.values()) >= 30
    async with ready.connection() as conn:
        await assert_invariants(conn)


@pytest.mark.long
async def test_arguments_changed_after_the_approval_never_run_in_a_thousand_tries(ready: Pool) -> None:
    tried = await tries(ready, 1_050)
    assert sum(tried.values()) >= 2_000
    assert len(tried) == 5
