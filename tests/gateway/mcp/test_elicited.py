"""Questions as forms that every client can show, and what comes back."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ElicitRequest, ElicitResult, methods

from turnstile.gateway.mcp.elicited import asked_by, decision_of, question_form, read_state, reply_name, state_of
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentTurnId, ToolCallId
from turnstile.schema.people.digests import action_digest
from turnstile.schema.people.interrupt_requests import InterruptView

CALL = ToolCallId("call")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def approval(arguments: dict[str, Any], **more: Any) -> InterruptView:
    """A call of the tool `pay` that waits."""
    digest = action_digest(CALL, "pay", "to.pay", arguments)
    return view(reason="tool_call", action_digest=digest, arguments=arguments, target_subject="to.pay", **more)


def view(**fields: Any) -> InterruptView:
    """A question."""
    ids = {
        name: name
        for name in ("interrupt_id", "channel_id", "agent_id", "agent_turn_id", "step_id", "tool_call_card_id")
    }
    usual = {
        **ids,
        "tool_call_id": CALL,
        "tool_name": "pay",
        "message": "May I?",
        "allowed_decisions": ["approve", "edit", "reject", "respond"],
        "response_schema": None,
        "requester_may_decide": True,
        "requester": None,
        "status": "open",
        "created_at": NOW,
        "expires_at": NOW,
        "action_digest": None,
    }
    return InterruptView.model_validate({**usual, **fields})


def answer(action: Any = "accept", **content: Any) -> ElicitResult:
    """What a person answers."""
    return ElicitResult(action=action, content=content or None)


SCHEMAS: list[tuple[Any, Any, Any]] = [
    ({"type": "string"}, "text", "text"),
    ({"enum": ["a", "b"]}, "a", "a"),
    ({"type": "boolean"}, True, True),
    ({"type": "integer"}, 5, 5),
    ({"type": "object", "properties": {"x": {"type": "array"}}}, '{"x": [1]}', {"x": [1]}),
    ({"enum": [1, 2]}, "2", 2),
    ({"type": ["string", "null"]}, "null", None),
    (None, "text", "text"),
]


@pytest.mark.parametrize(("schema", "given_back", "response"), SCHEMAS)
def test_a_question_of_any_schema_is_a_form_of_every_revision(schema: Any, given_back: Any, response: Any) -> None:
    asked = view(reason="input_required", response_schema=schema, allowed_decisions=["respond", "reject"])
    form = question_form(asked)
    assert form is not None
    params = form.model_dump(mode="json", by_alias=True, exclude_none=True)
    for revision in ("2025-06-18", "2025-11-25"):
        methods.SERVER_REQUESTS["elicitation/create", revision].model_validate(
            {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params}
        )
    assert ElicitRequest(params=form).params == form
    made = decision_of(asked, None, answer(answer=given_back))
    assert made is not None
    assert made["response"] == response


def test_a_call_is_shown_as_its_digest_names_it() -> None:
    asked = approval({"to": "Ada\u202e", "amount": 5})
    form = question_form(asked)
    assert form is not None
    assert "\u202e" not in form.message
    assert all(each in form.message for each in ('"pay"', "\\u202e", '"amount": 5', str(asked.action_digest)))
    assert question_form(asked.model_copy(update={"arguments": {"amount": 6}})) is None
    assert question_form(approval({"text": "x" * 20_000})) is None
    assert question_form(view(reason="tool_call", action_digest="0" * 64)) is None


def test_decisions_are_read_and_what_is_none_is_refused() -> None:
    asked = approval({"amount": 5})

    def made(result: ElicitResult) -> Any:
        return decision_of(asked, "d", result)

    assert made(answer("cancel")) is None
    assert made(answer("decline"))["decision"] == "reject"
    assert made(answer(decision="approve"))["action_digest"] == "d"
    assert made(answer(decision="edit", arguments='{"amount": 3}'))["arguments"] == {"amount": 3}
    assert made(answer(decision="respond", response="a text"))["response"] == "a text"
    assert made(answer(decision="reject", message="no"))["message"] == "no"
    for bad in (answer(), answer(decision="x"), answer(decision="edit", arguments="{"), answer(message="approve")):
        with pytest.raises(BadRequest):
            made(bad)


@given(st.from_regex(r"[!-~]{1,140}", fullmatch=True), st.none() | st.from_regex(r"[0-9a-f]{64}", fullmatch=True))
def test_the_reply_to_a_question_names_it(interrupt: str, digest: str | None) -> None:
    asked = view(reason="tool_call", interrupt_id=interrupt, action_digest=digest)
    assert asked_by(reply_name(asked)) == (interrupt, digest)


@given(st.text(max_size=300) | st.integers())
def test_other_names_are_no_questions(name: str | int) -> None:
    assert asked_by(name) is None or str(name).startswith("person/")


@given(st.text(max_size=300))
def test_a_state_is_read_or_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        read_state(text)


def test_a_state_comes_back_as_it_went() -> None:
    made = state_of(AgentTurnId("turn"), [approval({"amount": 5})])
    assert read_state(made.text()) == made
