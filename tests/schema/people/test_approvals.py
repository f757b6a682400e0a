"""Rules of approvals: which calls they hold, what is refused, and that the stricter of two counts."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from turnstile.schema import checks
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest
from turnstile.schema.people.approvals import EXPIRES_AFTER_SECONDS, ApprovalRule, InterruptRule, approval
from turnstile.schema.profiles import Profile
from turnstile.schema.tools import ToolDefinition, ToolRow, options_of
from turnstile.schema.wire.subjects import tool_target

RULE: TypeAdapter[ApprovalRule] = TypeAdapter(InterruptRule)
LARGE: JsonObject = {"properties": {"amount": {"minimum": 100}}, "required": ["amount"]}


def rule(value: Any) -> ApprovalRule:
    """The rule as it is written."""
    return RULE.validate_python(value)


def test_true_asks_about_each_call_with_everything_allowed() -> None:
    found = rule(True)
    assert found.asks({})
    assert found.asks({"any": 1})
    assert found.allowed_decisions == ("approve", "edit", "reject", "respond")
    assert found.expires_after_seconds == EXPIRES_AFTER_SECONDS == 604_800
    assert found.on_expiry == "reject"
    assert not found.requester_may_decide


def test_a_condition_asks_where_the_arguments_match_it() -> None:
    found = rule({"when": LARGE})
    assert [found.asks({"amount": amount}) for amount in (99, 100, 10**20)] == [False, True, True]
    assert not found.asks({})


@pytest.mark.parametrize(
    "when",
    [
        {"not": {"pattern": "(?=a)b"}},
        {"not": {"format": "email"}},
        {"$ref": "#/$defs/none"},
        {"anyOf": [{"patternProperties": {"^(?=a)": False}}]},
        {"$ref": "https://example.org/schema"},
        {"$ref": "#/properties/a"},
        {"$defs": {"a": {"unevaluatedProperties": False}}},
        {"type": "nonsense"},
        {"minimum": "1"},
        True,
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_refused(when: Any) -> None:
    with pytest.raises(ValidationError):
        rule({"when": when})


def test_names_of_properties_are_no_keywords() -> None:
    found = rule({"when": {"properties": {"format": {"const": "html"}, "pattern": {"enum": [{"$id": 1}]}}}})
    assert found.asks({"format": "html"})
    assert not found.asks({"format": "text"})


def test_a_condition_that_says_nothing_asks() -> None:
    assert rule({"when": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}).asks({"a": 1})


def test_a_condition_that_takes_too_long_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MOST_LOOKS", 10)
    deep: dict[str, Any] = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 3} for n in range(20)}
    deep["l20"] = {"const": "never"}
    assert rule({"when": {"$ref": "#/$defs/l0", "$defs": deep}}).asks({"a": 1})


@pytest.mark.parametrize(
    "value",
    [
        False,
        None,
        "yes",
        {"allowed_decisions": []},
        {"allowed_decisions": ["approve", "approve"]},
        {"allowed_decisions": ["allow"]},
        {"expires_after_seconds": 0},
        {"expires_after_seconds": float("inf")},
        {"on_expiry": "approve"},
        {"description": ""},
        {"unknown": 1},
    ],
)
def test_malformed_rules_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        rule(value)


def test_either_of_two_rules_asks_and_the_stricter_fields_count() -> None:
    mine = rule({"when": LARGE, "expires_after_seconds": 60, "requester_may_decide": True, "description": "Mine?"})
    theirs = rule({"when": {"required": ["to"]}, "allowed_decisions": ["reject", "approve"], "description": "Theirs?"})
    assert approval((mine, theirs), {"amount": 1}) is None
    asking: list[JsonObject] = [{"amount": 100}, {"to": "x"}, {"amount": 100, "to": "x"}]
    for arguments in asking:
        found = approval((mine, theirs), arguments)
        assert found is not None
        assert found.allowed_decisions == ("approve", "reject")
        assert found.expires_after_seconds == 60
        assert not found.requester_may_decide
        assert found.description == "Mine?\nTheirs?"


def test_rules_that_allow_nothing_together_still_allow_a_rejection() -> None:
    found = approval((rule({"allowed_decisions": ["approve"]}), rule({"allowed_decisions": ["respond"]})), {})
    assert found is not None
    assert found.allowed_decisions == ("reject",)


def test_no_rule_asks_nothing() -> None:
    assert approval((None, None), {"amount": 1}) is None
    only = approval((None, rule(True)), {})
    assert only is not None


def profile(**more: Any) -> Profile:
    """A profile as a file has it."""
    return Profile.model_validate({"name": "p", "llm_config": {"model": "scripted/echo"}, **more})


def test_a_profile_names_the_tools_that_wait() -> None:
    stored = profile(interrupt_on={"pay": True, "mail": {"when": LARGE}}).model_dump(mode="json")
    again = Profile.model_validate(stored)
    assert again.interrupt_on["pay"].asks({})
    assert not again.interrupt_on["mail"].asks({"amount": 1})
    assert "interrupt_on" not in profile().model_dump(mode="json")


MALFORMED: list[Any] = [{"submit_result": True}, {"no name": True}, {"pay": False}, {"pay": {"wen": {}}}, ["pay"]]


@pytest.mark.parametrize("on", MALFORMED)
def test_a_profile_with_a_malformed_policy_is_refused(on: Any) -> None:
    with pytest.raises(ValidationError):
        profile(interrupt_on=on)


def test_a_tool_row_says_that_its_calls_wait() -> None:
    given = {"tool_name": "pay", "description": "Pay.", "target_subject": tool_target("pay", "call")}
    for on in (True, {"when": LARGE}):
        tool = ToolDefinition.model_validate({**given, "options": {"interrupt_on": on}})
        row = ToolRow.model_validate(tool.model_dump(mode="json", exclude_defaults=True))
        found = options_of(row).interrupt_on
        assert found is not None
        assert found.asks({"amount": 100})
    with pytest.raises(ValidationError):
        ToolDefinition.model_validate({**given, "options": {"interrupt_on": {"when": {"format": "email"}}}})
    with pytest.raises(BadRequest, match="interrupt_on"):
        options_of(ToolRow(tool_name="pay", options={"interrupt_on": {"unknown": 1}}))
