"""What turns ask people as AG-UI's interrupts, and what `resume` says as decisions (protocol §13, §17.4). Pure.

An interrupt carries the digest of its call in its metadata. An answer that lets the call go out brings that back: what
a person was shown is what runs.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from ag_ui.core import Interrupt, ResumeEntry
from pydantic import JsonValue

from turnstile.gateway.agui.run_stream import OWN
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import InterruptReason

_DIGEST: Final = "action_digest"
_SENT: Final = frozenset({Decision.APPROVE, Decision.EDIT})
_GIVEN_UP: Final = "cancelled"
_WORDS: Final = frozenset({"decision", "arguments", "message", "response", "approved", "editedArgs"})


def interrupt_of(view: InterruptView) -> Interrupt:
    """A question as AG-UI's clients read it."""
    notes: JsonObject = {
        "tool_name": view.tool_name,
        "allowed_decisions": [*view.allowed_decisions],
        "requester_may_decide": view.requester_may_decide,
    }
    if view.is_what_is_shown and view.action_digest is not None:
        notes |= {_DIGEST: view.action_digest, "arguments": view.arguments}
    return Interrupt(
        id=view.interrupt_id,
        reason=view.reason,
        message=view.message,
        tool_call_id=view.tool_call_id,
        response_schema=_schema_of(view),
        expires_at=view.expires_at.isoformat(),
        metadata={OWN: notes},
    )


def decision_in(entry: ResumeEntry, view: InterruptView) -> JsonObject:
    """The arguments of `decide` for an answer; raises `Refused` for one that cannot be read."""
    decision_fields: JsonObject = {"interrupt_id": view.interrupt_id, _DIGEST: view.action_digest}
    if entry.status == "cancelled":
        return {**decision_fields, "decision": Decision.REJECT, "message": _GIVEN_UP}
    if view.reason is InterruptReason.INPUT_REQUIRED:
        return {**decision_fields, "decision": Decision.RESPOND, "response": cast("JsonValue", entry.payload)}
    payload = _object(entry)
    decision = _decision(payload)
    if decision in _SENT:
        decision_fields[_DIGEST] = _digest_in(entry.metadata)
    decision_fields["decision"] = decision
    if decision == Decision.EDIT:
        decision_fields["arguments"] = payload["editedArgs"] if "editedArgs" in payload else payload.get("arguments")
    if decision == Decision.RESPOND:
        decision_fields["response"] = payload.get("response")
    if "message" in payload:
        decision_fields["message"] = payload["message"]
    return decision_fields


def _object(entry: ResumeEntry) -> JsonObject:
    payload: Any = entry.payload
    if not isinstance(payload, dict):
        raise _unreadable("it must be an object with `decision` or `approved`")
    payload_fields = cast("JsonObject", payload)
    if unknown := payload_fields.keys() - _WORDS:
        raise _unreadable(f"it has unknown fields: {', '.join(sorted(unknown))[:200]}")
    return payload_fields


def _decision(payload: JsonObject) -> JsonValue:
    """What is decided; AG-UI's own words for it are `approved` and `editedArgs`."""
    match payload:
        case {"decision": decision, **rest} if not rest.keys() & {"approved", "editedArgs"}:
            return decision
        case {"approved": False, **rest} if "decision" not in rest:
            return Decision.REJECT
        case {"approved": True, "editedArgs": _, **rest} if "decision" not in rest:
            return Decision.EDIT
        case {"approved": True, **rest} if "decision" not in rest:
            return Decision.APPROVE
        case _:
            raise _unreadable("it needs either `decision`, or `approved` as true or false")


def _digest_in(metadata: Mapping[str, Any] | None) -> JsonValue:
    extension = (metadata or {}).get(OWN)
    digest = cast("Mapping[str, Any]", extension).get(_DIGEST) if isinstance(extension, dict) else None
    if not isinstance(digest, str):
        raise Refused("digest_mismatch", f"send the interrupt's metadata back, which has {OWN}.{_DIGEST}")
    return digest


def _schema_of(view: InterruptView) -> dict[str, Any]:
    """What an answer must be."""
    if view.reason is InterruptReason.INPUT_REQUIRED:
        return view.response_schema if view.response_schema is not None else {"type": "string"}
    allowed = set(view.allowed_decisions)
    fields: dict[str, Any] = {"decision": {"enum": [*view.allowed_decisions]}}
    if allowed & {Decision.APPROVE, Decision.REJECT}:
        fields["approved"] = {"type": "boolean"}
    if Decision.EDIT in allowed:
        whole = {"type": "object", "description": "All arguments of the call, instead of the model's."}
        fields |= {"arguments": whole, "editedArgs": whole}
    if Decision.RESPOND in allowed:
        fields["response"] = {"description": "The call's result, in place of its tool."}
    fields["message"] = {
        "type": "string",
        "maxLength": 4096,
        "description": "The reason. The model reads the reason of a rejection.",
    }
    ways = [{"required": [name]} for name in ("decision", "approved") if name in fields]
    return {"type": "object", "properties": fields, "anyOf": ways, "additionalProperties": False}


def _unreadable(why: str) -> Refused:
    return Refused("invalid_response", f"the payload of an approval cannot be read: {why}")
