"""Which calls of a step wait for a person, and what a person is shown of them (protocol §13.2, §13.3).

And how long a turn waits for a call: by the kind of its tool, and longer if the tool says so.
"""

import json
from typing import Any

import pytest

from tests.rules.test_choices import TURN
from turnstile.rules.action_turn import ActionCall, action_call
from turnstile.rules.answer import AnsweredCall, ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import Continue, Decision, StepRequest, Suspend, decide
from turnstile.rules.holds import ASK_HUMAN_ROW
from turnstile.rules.outgoing import CallOrigin
from turnstile.rules.tool_specs import build_tool_specs
from turnstile.rules.turn_config import TurnConfig
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType, ToolCallContent, ToolResultContent, content_of
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.ids import step_id
from turnstile.schema.people import interrupts
from turnstile.schema.people.approvals import ApprovalRule
from turnstile.schema.people.digests import action_digest
from turnstile.schema.people.interrupts import Hold, InterruptReason
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.states import AfterExecution
from turnstile.schema.tools import PMO_TOOLS, ToolRow

TARGET = "cg.v1r4.{project_id}.{channel_id}.cmd.tool.pay.run"
LARGE: JsonObject = {"properties": {"amount": {"minimum": 100}}, "required": ["amount"]}


def pay(**options: Any) -> ToolRow:
    """The tool that is called."""
    return ToolRow(tool_name="pay", target_subject=TARGET, options=options)


def step(*said: tuple[str, Any], row: ToolRow | None = None, last: bool = False, **rules: Any) -> Decision:
    """What a step comes to that makes these calls; `rules` are the profile's."""
    config = TurnConfig(
        profile_name="x",
        llm_config=LlmConfig(model="m"),
        max_steps=1 if last else 9,
        must_end_with=[],
        tools={"pay": row or pay(), "ask_human": ASK_HUMAN_ROW},
        interrupt_on={name: ApprovalRule.model_validate(rule) for name, rule in rules.items()},
    )
    texts = [(name, given if isinstance(given, str) else json.dumps(given)) for name, given in said]
    calls = tuple(AnsweredCall(f"call_{place}", name, text) for place, (name, text) in enumerate(texts))
    return decide(
        StepRequest(TURN, 1, config, (), "", Patience()), ModelAnswer("", "", calls, "stop", {}, None, "unknown", None)
    )


def holds(decision: Decision) -> list[Hold | None]:
    """The hold of each call that was accepted."""
    assert isinstance(decision, Suspend)
    assert len(decision.commands) == len(decision.waits) == len(decision.holds)
    return list(decision.holds)


def refusal(decision: Decision) -> tuple[str, str]:
    """Code and message of the one failed result."""
    assert isinstance(decision, Continue)
    content = content_of(decision.cards[-1])
    assert isinstance(content, ToolResultContent)
    assert content.error is not None
    return content.error.code, content.error.message


def test_without_a_rule_a_call_goes_out_at_once() -> None:
    assert holds(step(("pay", {"amount": 1000}))) == [None]


def test_of_parallel_calls_only_those_that_a_rule_names_wait() -> None:
    found = step(("pay", {"amount": 5}), ("pay", {"amount": 100}), ("pay", {"amount": 7}), pay={"when": LARGE})
    assert [each is not None for each in holds(found)] == [False, True, False]


def test_the_digest_is_over_the_card_with_its_forced_arguments() -> None:
    row = pay(args={"fixed": {"account": "{project_id}"}, "defaults": {"note": "none"}}, envs={"key": "PAY_KEY"})
    found = step(("pay", {"amount": 100, "account": "mine"}), row=row, pay={})
    assert isinstance(found, Suspend)
    [hold], [command] = found.holds, found.commands
    card = next(c for c in found.cards if c.type == CardType.TOOL_CALL)
    content = content_of(card)
    assert isinstance(content, ToolCallContent)
    assert content.arguments == {"amount": 100, "account": "p", "note": "none", "key": {"$env": "PAY_KEY"}}
    assert hold is not None
    subject = "cg.v1r4.p.public.cmd.tool.pay.run"
    assert hold.action_digest == action_digest(command.tool_call_id, "pay", subject, content.arguments)
    assert hold.tool_pin == interrupts.ToolPin(target_subject=TARGET, parameters=row.parameters)
    assert hold.message == "The agent a wants to call the tool pay."


def test_a_rule_on_the_tools_row_asks_and_the_stricter_fields_count() -> None:
    row = pay(interrupt_on={"allowed_decisions": ["approve", "reject"], "requester_may_decide": True})
    [own] = holds(step(("pay", {}), row=row))
    assert own is not None
    assert own.requester_may_decide
    [both] = holds(step(("pay", {}), row=row, pay={"description": "Really?", "expires_after_seconds": 5}))
    assert both is not None
    assert (both.allowed_decisions, both.expires_after_seconds) == (("approve", "reject"), 5)
    assert (both.requester_may_decide, both.message) == (False, "Really?")


def test_a_row_whose_rule_cannot_be_read_sends_nothing() -> None:
    code, message = refusal(step(("pay", {}), row=pay(interrupt_on={"wen": {}})))
    assert code == "invalid_arguments"
    assert "interrupt_on" in message


def test_arguments_without_an_exact_digest_are_refused_only_where_a_person_is_asked() -> None:
    inexact = ("pay", '{"amount": 12345678901234567890123}')
    assert holds(step(inexact)) == [None]
    code, message = refusal(step(inexact, pay={}))
    assert code == "bad_arguments"
    assert "pass it as text" in message


def test_an_action_of_a_person_waits_where_the_tools_row_says_so() -> None:
    place = CallOrigin(TURN, step_id(TURN.agent_turn_id, 1), "", Patience())
    rows: list[JsonObject] = [pay(ui_allowed=True, interrupt_on=True).model_dump(mode="json")]
    found = action_call(place, ActionCall(tool_name="pay", arguments={}), rows)
    assert found.hold is not None
    assert found.command.after_execution is AfterExecution.TERMINATE


def test_a_question_is_input_required_and_has_no_command_to_send() -> None:
    found = step(("ask_human", {"question": "Which?"}), ("pay", {}))
    assert isinstance(found, Suspend)
    hold, other = found.holds
    assert other is None
    assert hold is not None
    assert hold.reason is InterruptReason.INPUT_REQUIRED
    assert (hold.message, hold.action_digest, hold.tool_pin) == ("Which?", None, None)
    assert hold.allowed_decisions == ("respond", "reject")
    assert hold.response_schema == {"type": "string"}
    assert hold.requester_may_decide
    assert found.commands[0].subject == ""
    [ruled] = holds(step(("ask_human", {"question": "Which?"}), ask_human={"expires_after_seconds": 9}))
    assert ruled is not None
    assert (ruled.expires_after_seconds, ruled.requester_may_decide) == (9, False)


def test_choices_become_an_enum_and_a_schema_stays() -> None:
    [chosen] = holds(step(("ask_human", {"question": "q", "choices": ["a", "b", "a"]})))
    [typed] = holds(step(("ask_human", {"question": "q", "response_schema": {"type": "integer"}})))
    assert chosen is not None
    assert typed is not None
    assert (chosen.response_schema, typed.response_schema) == ({"enum": ["a", "b"]}, {"type": "integer"})


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"question": ""},
        {"question": 1},
        {"question": "q", "choices": []},
        {"question": "q", "choices": "ab"},
        {"question": "q", "response_schema": {"type": "nonsense"}},
        {"question": "q", "response_schema": "text"},
        {"question": "q", "response_schema": {"enum": ["x" * 70_000]}},
        {"question": "q", "choices": ["a"], "response_schema": {}},
        {"question": "q", "more": 1},
        "no JSON",
    ],
)
def test_a_malformed_question_is_a_failed_result_for_the_model(arguments: Any) -> None:
    code, message = refusal(step(("ask_human", arguments)))
    assert code == "invalid_arguments"
    assert "ask_human" in message


def test_ask_human_is_offered_where_it_is_allowed_and_a_row_of_the_project_wins() -> None:
    offered = build_tool_specs([ASK_HUMAN_ROW], ["ask_human"])
    assert set(offered.rows) == {"ask_human"}
    assert not offered.warnings
    own = ToolRow(tool_name="ask_human", target_subject=TARGET)
    found = step(("pay", {}), row=own)
    assert holds(found) == [None]
    without_target = build_tool_specs([ToolRow(tool_name="ask_human")], ["ask_human"])
    assert not without_target.rows


SEARCH = ToolRow(tool_name="search", target_subject=TARGET)
LONGER: JsonObject = {"suspend_timeout_seconds": 500}


def waits(row: ToolRow, arguments: JsonObject) -> float:
    """What a call of this tool has, where tools have 60 s and delegating calls 7 s."""
    config = TurnConfig(
        profile_name="x", llm_config=LlmConfig(model="m"), max_steps=9, must_end_with=[], tools={row.tool_name: row}
    )
    call = AnsweredCall("call_0", row.tool_name, json.dumps(arguments))
    answer = ModelAnswer("", "", (call,), "stop", {}, None, "unknown", None)
    decision = decide(StepRequest(TURN, 1, config, (), "", Patience(60.0, 7.0)), answer)
    assert isinstance(decision, Suspend), decision
    return decision.waits[0]


@pytest.mark.parametrize("tool", sorted(PMO_TOOLS & set(kernel_tools())))
def test_a_delegating_call_waits_for_a_bridge_as_long_as_the_setting_of_its_own_says(tool: str) -> None:
    row = kernel_tools()[tool].model_copy(update={"parameters": {"type": "object"}})
    assert waits(row, {}) == 7.0
    assert waits(row.model_copy(update={"options": row.options | LONGER}), {}) == 500.0


def test_other_calls_have_the_patience_of_tools() -> None:
    assert waits(SEARCH, {}) == 60.0
    assert waits(SEARCH.model_copy(update={"options": LONGER}), {}) == 500.0
