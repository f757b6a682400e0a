"""Questions to people as elicitations of MCP, and their answers as arguments of `decide` (protocol §13, §17.2). Pure.

A question is asked only of a client whose token may decide it, and only if all that its digest names is shown. What
comes back is a stranger's: it names a turn, questions and digests, which are all looked up under the token again.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Final, cast

from mcp_types import ElicitRequestFormParams, ElicitResult
from pydantic import Field, JsonValue, ValidationError

from turnstile.gateway.schema_slots import WrongInput, is_plain, read_json, shown_json
from turnstile.schema.access import Principal, Right
from turnstile.schema.api import TOKEN
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentTurnId, InterruptId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import Interrupt, InterruptReason

_LONGEST_SHOWN = 16_000
MOST_ASKED: Final = 16
"""Questions that one answer asks."""
_REPLY: Final = "person"
_PRIMITIVE = frozenset({"string", "integer", "number", "boolean"})
_DECLINED = "declined by the person who was asked"


class RequestState(Strict):
    """What a client brings back with its answers: which turn waits, and the digests of what it was shown."""

    turn: str = Field(pattern=TOKEN)
    asked: dict[str, str | None] = Field(max_length=MOST_ASKED)

    def text(self) -> str:
        """As it is sent."""
        return base64.urlsafe_b64encode(self.model_dump_json().encode()).decode().rstrip("=")


def read_state(text: str) -> RequestState:
    """What a `requestState` says; raises `BadRequest`."""
    try:
        return RequestState.model_validate_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error, ValidationError):
        raise BadRequest("requestState: this gateway did not issue it") from None


def may_be_asked(question: Interrupt, principal: Principal) -> bool:
    """Whether the token may decide this, so that its client's person can be asked."""
    is_own_request = question.requester == principal.sender and not question.requester_may_decide
    return principal.may(Right.DECIDE) and not is_own_request


def question_form(view: InterruptView) -> ElicitRequestFormParams | None:
    """The question as a form; None if it cannot be shown as a whole."""
    is_question = view.reason is InterruptReason.INPUT_REQUIRED
    arguments = "" if view.arguments is None else shown_json(view.arguments)
    if not view.is_what_is_shown or len(arguments) + len(view.message) > _LONGEST_SHOWN:
        return None
    if is_question and Decision.RESPOND in view.allowed_decisions:
        answer = _answer_field(view.response_schema)
        text = f"The agent {view.agent_id} asks:\n\n{_quoted(view.message)}"
        return ElicitRequestFormParams(message=text, requested_schema=_form(["answer"], answer=answer))
    added = "\n\nThe tool adds arguments of its own, which you may not see." if view.arguments_left_out else ""
    text = (
        f"The agent {view.agent_id} wants to call the tool {json.dumps(view.tool_name)}.\n\n{_quoted(view.message)}\n\n"
        f"Its arguments:\n\n{_quoted(arguments)}{added}\n\nDigest of this call: {view.action_digest or 'none'}"
    )
    allowed = [str(allowed_decision) for allowed_decision in view.allowed_decisions]
    fields: dict[str, JsonValue] = {
        "decision": {"type": "string", "enum": [*allowed], "description": "What to do with the call."},
        "message": {"type": "string", "description": "With reject: why; the agent reads it."},
    }
    if Decision.EDIT in view.allowed_decisions:
        fields["arguments"] = {"type": "string", "description": "With edit: all arguments of the call, as JSON."}
    if Decision.RESPOND in view.allowed_decisions:
        fields["response"] = {"type": "string", "description": "With respond: the result of the call, a text or JSON."}
    return ElicitRequestFormParams(message=text, requested_schema=_form(["decision"], **fields))


def decision_of(view: InterruptView, digest: str | None, result: ElicitResult) -> JsonObject | None:
    """Arguments of `decide` for what a person answered; None if they have decided nothing. Raises `BadRequest`."""
    named: JsonObject = {"interrupt_id": view.interrupt_id, "action_digest": digest}
    match result.action:
        case "cancel":
            return None
        case "decline":
            return {**named, "decision": Decision.REJECT, "message": _DECLINED}
        case "accept":
            content = cast("JsonObject", result.content or {})
    if view.reason is InterruptReason.INPUT_REQUIRED and Decision.RESPOND in view.allowed_decisions:
        if "answer" not in content:
            raise BadRequest("answer: required")
        return {**named, "decision": Decision.RESPOND, "response": _answered(view.response_schema, content["answer"])}
    decision = str(content.get("decision"))
    if decision not in view.allowed_decisions:
        raise BadRequest(f"decision: one of {', '.join(view.allowed_decisions)}")
    decision_fields: JsonObject = {**named, "decision": decision}
    match decision:
        case Decision.EDIT:
            return {**decision_fields, "arguments": _json(content.get("arguments"), "arguments")}
        case Decision.RESPOND:
            return {**decision_fields, "response": _text_or_json(content.get("response"))}
        case _:
            return {**decision_fields, "message": str(content.get("message") or "")}


def reply_name(view: InterruptView) -> str:
    """The JSON-RPC id of the request that asks this on a stream: whoever hears the reply knows the question by it."""
    return f"{_REPLY}/{view.interrupt_id}/{view.action_digest or ''}"


def asked_by(name: str | int) -> tuple[InterruptId, str | None] | None:
    """The question, and the digest that was shown, of which this is the JSON-RPC id; None for any other."""
    kind, _, rest = str(name).partition("/")
    interrupt, slash, digest = rest.rpartition("/")
    if kind != _REPLY or not slash or not 0 < len(interrupt) <= 160 or len(digest) > 128:
        return None
    return InterruptId(interrupt), digest or None


def state_of(turn: AgentTurnId, views: Iterable[InterruptView]) -> RequestState:
    """The state of a call that waits for these questions."""
    return RequestState(turn=turn, asked={view.interrupt_id: view.action_digest for view in views})


def _form(required: list[str], **properties: JsonValue) -> JsonObject:
    return {"type": "object", "properties": {**properties}, "required": [*required]}


def _answer_field(schema: JsonObject | None) -> JsonObject:
    kind, known = (schema or {}).get("type", "string"), (schema or {}).get("enum")
    if isinstance(known, list) and known and all(isinstance(value, str) for value in known):
        return {"type": "string", "enum": known}
    if isinstance(kind, str) and kind in _PRIMITIVE and "enum" not in (schema or {}):
        return {"type": kind}
    return {"type": "string", "description": f"JSON that matches {json.dumps(schema)[:_LONGEST_SHOWN]}"}


def _answered(schema: JsonObject | None, value: JsonValue) -> JsonValue:
    """The answer as the question's schema wants it; the bridge checks it."""
    is_json = "description" in _answer_field(schema)
    return _json(value, "answer") if is_json else value


def _json(text: JsonValue, name: str) -> JsonValue:
    try:
        return read_json(text) if isinstance(text, str) else text
    except WrongInput as fault:
        raise BadRequest(f"{name}: {fault}") from None


def _text_or_json(text: JsonValue) -> JsonValue:
    try:
        return read_json(text) if isinstance(text, str) else text
    except WrongInput:
        return text


def _quoted(text: str) -> str:
    """What a stranger wrote, line by line as a quotation, so that it cannot pass for what stands around it."""
    line_text = text if is_plain(text) else json.dumps(text)
    return "\n".join(f"> {line}" for line in line_text.split("\n"))


def responses_in(responses: Mapping[str, object] | None) -> dict[str, ElicitResult]:
    """The answers of people among the responses that a client brings."""
    return {name: result for name, result in (responses or {}).items() if isinstance(result, ElicitResult)}
