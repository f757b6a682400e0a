"""The effect of a handler's response or an agent's deliverable (protocol §9). Pure.

If a message may not or cannot be delivered, its sender gets a message of the pump instead. That is the same for an
unknown and for a forbidden target, so that the sender cannot find out which listeners exist.
"""

import json
import logging
from collections.abc import Callable

from pydantic import JsonValue, ValidationError

from turnstile.rules.hop import BegunMessage, Effect, Forward, Iterate, NoMessage, Respond
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import JsonContent, TextContent, read_content
from turnstile.schema.profiles import Choice, RuntimeConfig
from turnstile.schema.pump.documents import BadPayload, PayloadCode, read_root, repaired
from turnstile.schema.pump.listeners import RESPOND, SEND, THINK, BadListener, Listener, Registry, Thought
from turnstile.schema.pump.payloads import Payload, is_reserved
from turnstile.schema.pump.peers import tool_parameters
from turnstile.schema.pump.primitives import HandlerResponse, Huh, ResponseKind, SystemErrorMessage, is_system_message
from turnstile.schema.pump.threads import MessageKind, MessageStatus
from turnstile.schema.states import TurnStatus
from turnstile.schema.validation import describe_faults

log = logging.getLogger(__name__)
_SHOWN = 80
"""Characters of a name that a log line shows."""


def xml_of(payload: Payload) -> str:
    """A payload as XML text, written by `Payload.to_xml` even if its class overrides that."""
    return Payload.to_xml(payload).decode()


def outgoing(payload: Payload) -> str:
    """A payload that a handler or an agent sends, as XML text that was parsed again; raises `BadPayload`.

    It refuses the pump's own two messages and namespaces, which only these have (protocol §9.6).
    """
    text = xml_of(payload)
    tag = read_root(text.encode()).tag
    if tag.startswith("{") or is_reserved(tag):
        raise BadPayload(PayloadCode.ROOT, f"{type(payload).__name__} has a root of the pump's own")
    return text


def huh(begun: BegunMessage) -> Respond:
    """The answer to a message that its receiver cannot process. It quotes a request, but not another's response."""
    is_out = begun.was is MessageStatus.WAITING and begun.outcome is None
    is_theirs = begun.kind is MessageKind.REQUEST
    error = Huh.of(begun.payload.encode()) if is_theirs else SystemErrorMessage.validation()
    return Respond(xml_of(error), system=True, expired=is_out)


def unreadable(begun: BegunMessage) -> Effect:
    """The effect of a message that its listener cannot read: `huh` for the sender of a request.

    For a response, or a message of the listener to itself, the listener gets a message of the pump instead: the sender
    of a response has ended.
    """
    match begun.kind:
        case MessageKind.SELF:
            return _refused(Huh.of(begun.payload.encode()))
        case MessageKind.RESPONSE:
            return _refused(SystemErrorMessage.validation())
        case _:
            return huh(begun)


def timed_out(*, expired: bool = False) -> Respond:
    """The answer if none came in time; `expired` if an agent's turn still runs."""
    return Respond(xml_of(SystemErrorMessage.timeout()), system=True, expired=expired)


def unreachable(*, expired: bool = False) -> Respond:
    """The answer if no turn can be enqueued for a listener's agent; `expired` if a turn of it still runs."""
    return Respond(xml_of(SystemErrorMessage.routing()), system=True, expired=expired)


def read_payload(registry: Registry, listener: Listener | None, begun: BegunMessage) -> Payload | None:
    """Parse the message's payload; returns None if the listener does not exist or cannot process it.

    A request holds the listener's payload class, as XML or, from outside, as a JSON object; other messages may hold any
    registered payload. An unknown listener's message is parsed, too, so that the time taken does not reveal which
    listeners exist.
    """
    raw = begun.payload.encode()
    schema = None if listener is None else listener.payload
    is_request = begun.kind is MessageKind.REQUEST
    try:
        if is_request and begun.parent_id is None and begun.payload.lstrip().startswith("{"):
            payload = registry.read_json(raw, schema)
        else:
            payload = registry.read(read_root(repaired(raw)))
    except BadPayload as error:
        log.info("message %s from %s to %s: %s", begun.message_id, begun.from_id, begun.listener, error.code)
        return None
    if payload is None or (is_request and type(payload) is not schema):
        code = PayloadCode.ROOT
        log.info("message %s from %s to %s: %s", begun.message_id, begun.from_id, begun.listener, code)
        return None
    return payload


def effect_of_response(registry: Registry, listener: Listener, response: object, message: str = "") -> Effect:
    """The effect of a handler's return value; raises `TypeError` unless that is a `HandlerResponse` or None."""
    if response is None:
        return NoMessage()
    if not isinstance(response, HandlerResponse):
        raise TypeError(f"a handler returns a HandlerResponse or None, not {type(response).__name__}")
    payload = response.payload
    if is_system_message(payload):
        log.warning("message %s: %s returned a message of the pump's own", message, listener.name)
        return _refused(SystemErrorMessage.validation())
    if response.kind is ResponseKind.RESPOND:
        return _written(listener, message, payload, Respond)
    # Written before it is routed: a payload that cannot go out gets the same error, whether or not the target exists.
    return _written(listener, message, payload, lambda text: _forwarded(registry, listener, response, text, message))


def effect_of_turn(registry: Registry, listener: Listener, begun: BegunMessage) -> Effect | None:
    """The effect of the agent's turn for this message; None while the turn runs within its deadline."""
    if begun.outcome is None:
        return timed_out(expired=True) if begun.is_overdue else None
    if begun.outcome is TurnStatus.PARTIAL:
        return huh(begun)  # the turn ran out of steps
    if begun.outcome is not TurnStatus.SUCCESS or begun.deliverable is None:
        return timed_out()
    match read_content(begun.deliverable):
        case TextContent(text=text):
            return _from_text(listener, text)
        case JsonContent(data=data) if isinstance(data, dict):
            return _from_choice(registry, listener, begun, data)
        case _:
            return timed_out()


def choices(registry: Registry, listener: Listener) -> list[Choice]:
    """The tools that end a turn of this agent: one for each peer, `respond` and `think`."""
    peers = [peer for name in listener.peers if (peer := registry.get(name)) is not None and peer is not listener]
    return [
        *(
            Choice(
                name=f"{SEND}{peer.name}",
                description=f"Send a message to {peer.name} and wait for its answer. {peer.description}",
                parameters=tool_parameters(peer.payload),
            )
            for peer in peers
        ),
        Choice(
            name=RESPOND,
            description="Answer whoever asked you. This ends all that you began below you.",
            parameters=tool_parameters(listener.response),
        ),
        Choice(
            name=THINK,
            description="Think again: what you say here is what you are asked next.",
            parameters=tool_parameters(Thought),
        ),
    ]


def turn_settings(registry: Registry, listener: Listener) -> RuntimeConfig:
    """The runtime config of every turn of this agent; raises `BadListener` if it is invalid."""
    try:
        return RuntimeConfig(
            choices=choices(registry, listener), instructions=registry.tool_instructions(listener.name), remember=True
        )
    except ValidationError as error:
        faults = describe_faults(error, RuntimeConfig)
        raise BadListener(
            f"listener {listener.name!r}: its agent cannot be asked with these peers: {faults} ({listener.place})"
        ) from None


def _from_text(listener: Listener, text: str) -> Effect:
    if not text.strip():
        return _refused(Huh.of(b""))
    try:
        return Respond(outgoing(listener.response.from_text(text)))
    except BadPayload:
        return _refused(Huh.of(text.encode()))


def _from_choice(registry: Registry, listener: Listener, begun: BegunMessage, data: JsonObject) -> Effect:
    """The effect of a choice and its arguments; the fields of a `submit_result` count as `respond`."""
    name, arguments = data.get("choice", RESPOND), data.get("arguments")
    if arguments is None:
        arguments = _submitted(data)
    try:
        if name == RESPOND:
            return Respond(outgoing(listener.response.from_value(arguments)))
        if name == THINK:
            return Iterate(outgoing(Thought.from_value(arguments)))
        target = registry.route(listener, str(name).removeprefix(SEND), "")
        if target is None:
            return _unroutable(registry, listener, str(name).removeprefix(SEND), "", begun.message_id)
        sent = outgoing(target.payload.from_value(arguments))
        return Iterate(sent) if target is listener else Forward(target.name, sent, begun.agent_turn_id)
    except BadPayload:
        return _refused(Huh.of(json.dumps(arguments).encode()))


def _forwarded(registry: Registry, listener: Listener, response: HandlerResponse, text: str, message: str) -> Effect:
    """The effect of a payload that may go out: to the listener itself, to its target, or an answer of the pump.

    A plain handler may name any listener. So it hears the same of a target that is not there as of one that does not
    take the payload. An agent knows its peers, and hears `huh` of a payload that a peer does not take.
    """
    payload, tag = response.payload, response.payload.root_tag()
    target = registry.route(listener, response.to, tag)
    if target is None:
        return _unroutable(registry, listener, response.to, tag, message)
    if target is listener:
        return Iterate(text)
    if type(payload) is target.payload:
        return Forward(target.name, text)
    log.warning(
        "message %s: %s sent %r to %s, which does not take it", message, listener.name, tag[:_SHOWN], target.name
    )
    return _refused(Huh.of(text.encode()) if listener.agent else SystemErrorMessage.routing())


def _unroutable(registry: Registry, listener: Listener, to: str | None, tag: str, message: str) -> Effect:
    """The pump's answer to the sender. The log has the name and the reason, which the sender does not get."""
    if to is None:
        named, known = f"the payload {tag[:_SHOWN]!r}, which", registry.has_payload(tag)
        missing = "is no listener's"
    else:
        named, known, missing = f"{to[:_SHOWN]!r}, which", registry.get(to) is not None, "is no listener here"
    reason = f"is none of its peers ({', '.join(listener.peers) or 'it has none'})" if known else missing
    log.warning("message %s: %s sent to %s %s", message, listener.name, named, reason)
    return _refused(SystemErrorMessage.routing())


def _submitted(data: JsonObject) -> JsonValue:
    fields = data.get("fields")
    if not isinstance(fields, list):
        return None
    return {str(field.get("name")): field.get("value") for field in fields if isinstance(field, dict)}


def _written(listener: Listener, message: str, payload: Payload, effect: Callable[[str], Effect]) -> Effect:
    try:
        return effect(outgoing(payload))
    except BadPayload as error:
        log.warning("message %s: %s returned a payload that cannot go out: %s", message, listener.name, error.code)
        return _refused(SystemErrorMessage.validation())


def _refused(message: Payload) -> Iterate:
    """Deliver a message of the pump to the sender itself, so that the thread continues."""
    return Iterate(xml_of(message), system=True)
