"""Client tools: how they are offered, whose names they may not have, and what becomes of a call of one (§19)."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.rules.test_choices import TURN, Said, made, refusals
from turnstile.rules.answer import ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import Continue, Decision, Deliver, StepRequest, Suspend, decide
from turnstile.rules.tool_specs import build_tool_specs, last_specs, taken_name
from turnstile.rules.turn_config import TurnConfig
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType, ToolCallContent, content_of
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.people.interrupts import InterruptReason
from turnstile.schema.people.reruns import RerunRequest
from turnstile.schema.profiles import Choice, ClientTool, LlmConfig, RuntimeConfig
from turnstile.schema.tools import ToolRow

CITY: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ClientTool(name="weather", description="The weather.", parameters=CITY)
SEARCH = ToolRow(tool_name="search", target_subject="cg.v1r4.{project_id}.{channel_id}.cmd.tool.search.run")


def step(*calls: Said, number: int = 1, **config: Any) -> Decision:
    """What a step of at most nine comes to in which the model makes these calls."""
    settings: dict[str, Any] = {"max_steps": 9, "must_end_with": [], "tools": {"search": SEARCH}, **config}
    pinned = TurnConfig(profile_name="x", llm_config=LlmConfig(model="m"), client_tools={"weather": CITY}, **settings)
    answer = ModelAnswer("", "", tuple(made(*calls)), "stop", {}, None, "unknown", None)
    return decide(StepRequest(TURN, number, pinned, (), "", Patience()), answer)


def test_a_call_is_held_for_its_client_beside_others_and_no_rule_of_people_applies() -> None:
    found = step(
        ("weather", {"city": "Graz"}), ("search", {}), interrupt_on={"weather": {"requester_may_decide": False}}
    )
    assert isinstance(found, Suspend)
    hold, other = found.holds
    assert hold is not None
    assert other is None
    assert (hold.reason, hold.only_requester, hold.requester_may_decide) == (InterruptReason.CLIENT_TOOL, True, True)
    assert (hold.allowed_decisions, hold.action_digest, hold.tool_pin) == (("respond", "reject"), None, None)
    assert (hold.on_expiry, hold.expires_after_seconds, found.waits[0]) == ("timeout", 600.0, 600.0)
    assert found.commands[0].subject == ""
    card = next(card for card in found.cards if card.type == CardType.TOOL_CALL)
    content = content_of(card)
    assert isinstance(content, ToolCallContent)
    assert (content.arguments, content.target_subject) == ({"city": "Graz"}, None)


def test_its_request_says_how_long_it_waits_and_what_follows() -> None:
    found = step(("weather", {"city": "Graz"}), client_tool_seconds=5.0, client_gone="cancel")
    assert isinstance(found, Suspend)
    assert [(h.on_expiry, h.expires_after_seconds) for h in found.holds if h is not None] == [("cancel", 5.0)]


@pytest.mark.parametrize("arguments", [{"city": 7}, {}, '{"city"', "[]"])
def test_arguments_that_do_not_fit_are_the_models_to_mend(arguments: Any) -> None:
    found = step(("weather", arguments))
    assert isinstance(found, Continue)
    assert [code for code, _ in refusals(found.cards)] == ["invalid_arguments"]


def test_the_last_step_has_none() -> None:
    specs = build_tool_specs([SEARCH], None, client_tools=[WEATHER]).specs
    assert [spec["function"]["name"] for spec in specs] == ["search", "weather", "submit_result"]  # type: ignore[index]
    assert len(last_specs(specs, ())) == 1
    assert isinstance(step(("weather", {"city": "Graz"}), number=9), Deliver)


@pytest.mark.parametrize("name", ["skills_load", "submit_result", "read_result", "ask_human", "fork_join", "chosen"])
def test_no_client_masks_another_tool(name: str) -> None:
    choices = [Choice(name="chosen", description="x")]
    own = [WEATHER, ClientTool(name=name)]
    assert taken_name(["skills.load"], choices, own) == name
    assert taken_name(["skills.load"], choices, own[:1]) is None


def test_what_a_request_may_say_of_them() -> None:
    tools = [{"name": f"tool_{n}"} for n in range(128)]
    config = RuntimeConfig.model_validate({"client_tools": tools, "client_gone": "cancel", "client_tool_seconds": 9})
    stored, text = config.split()
    assert stored == {"client_gone": "cancel", "client_tool_seconds": 9.0}
    assert len(json.loads(json.dumps(text))["client_tools"]) == 128
    assert RuntimeConfig().model_dump(exclude_none=True) == {}
    wrong: list[Any] = [
        {"client_tools": [*tools, {"name": "more"}]},
        {"client_tools": [{"name": "a"}, {"name": "a"}]},
        {"client_tools": [{"name": "a b"}]},
        {"client_tools": [{"name": "a", "parameters": {"type": "string"}}]},
        {"client_tool_seconds": 7 * 86_400 + 1},
        {"client_gone": "reject"},
    ]
    for fields in wrong:
        with pytest.raises(ValidationError):
            RuntimeConfig.model_validate(fields)


def test_a_rerun_has_them_only_if_its_request_names_them() -> None:
    before: JsonObject = {"client_tools": [{"name": "weather"}], "client_gone": "cancel", "max_steps": 3}
    plain = RerunRequest(agent_turn_id=AgentTurnId("t"))
    assert plain.settings(before) == RuntimeConfig(max_steps=3)
    named = plain.model_copy(update={"runtime_config": RuntimeConfig(client_tools=[WEATHER])})
    assert named.settings(before) == RuntimeConfig(max_steps=3, client_tools=[WEATHER])
