"""How long a turn waits for a call: by the kind of its tool, and longer if the tool says so."""

import json

import pytest

from tests.rules.test_choices import TURN
from tests.rules.test_holds import TARGET
from turnstile.rules.answer import AnsweredCall, ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import StepRequest, Suspend, decide
from turnstile.rules.turn_config import TurnConfig
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.tools import PMO_TOOLS, ToolRow

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
