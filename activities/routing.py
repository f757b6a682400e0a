"""What a handler's response, or an agent's deliverable, comes to (protocol §9). Pure.

Where a message may not or cannot go, its sender hears a message of the pump in its stead, always the same one: nothing
tells an unknown target from a forbidden one.
"""

import json
import logging
from collections.abc import Callable

from pydantic import JsonValue, ValidationError

from ledger.hops import BegunMessage, Effect, Forward, Iterate, Nothing, Respond
from schema.base import JsonObject
from schema.cards import JsonContent, TextContent, read_content
from schema.documents import BadPayload, read_root, repaired
from schema.listeners import RESPOND, THINK, BadListener, Listener, Registry, Thought
from schema.payloads import Payload
from schema.peers import tool_parameters
from schema.primitives import HandlerResponse, Huh, ResponseKind, SystemErrorMessage, is_system_message
from schema.profiles import Choice, RuntimeConfig
from schema.states import TurnStatus
from schema.threads import MessageKind, MessageStatus

log = logging.getLogger(__name__)
SEND = "send_"


def text_of(payload: Payload) -> str:
    """A payload as it travels."""
    return payload.to_xml().decode()


def huh(begun: BegunMessage) -> Respond:
    """The answer to a message that cannot be processed, for whoever sent it: what others answered is not given on."""
    is_out = begun.was is MessageStatus.WAITING and begun.outcome is None
    is_theirs = begun.kind is MessageKind.REQUEST
    said = Huh.of(begun.payload.encode()) if is_theirs else SystemErrorMessage.validation()
    return Respond(text_of(said), system=True, expired=is_out)


def unreadable(begun: BegunMessage) -> Effect:
    """What a message comes to that its listener cannot read: its sender hears, or the listener itself if it sent it.

    Who answered is gone, so the listener that waits hears in place of the answer.
    """
    match begun.kind:
        case MessageKind.SELF:
            return _refused(Huh.of(begun.payload.encode()))
        case MessageKind.RESPONSE:
            return _refused(SystemErrorMessage.validation())
        case _:
            return huh(begun)


def timed_out(*, expired: bool = False) -> Respond:
    """The answer where none came in time; `expired` where an agent's turn is still out."""
    return Respond(text_of(SystemErrorMessage.timeout()), system=True, expired=expired)


def unreachable(*, expired: bool = False) -> Respond:
    """The answer where a listener's agent cannot be asked; `expired` where a turn of it is still out."""
    return Respond(text_of(SystemErrorMessage.routing()), system=True, expired=expired)


def read_payload(registry: Registry, listener: Listener, begun: BegunMessage) -> Payload | None:
    """What the message holds; None if the listener cannot process it.

    A request is the listener's own payload: XML, or from outside a JSON object. Else it is what somebody answered.
    """
    raw = begun.payload.encode()
    is_request = begun.kind is MessageKind.REQUEST
    try:
        if is_request and begun.parent_id is None and begun.payload.lstrip().startswith("{"):
            return listener.payload.from_json(raw)
        root = read_root(repaired(raw))
        if is_request:
            return listener.payload.from_root(root)
        return registry.read(root)
    except BadPayload as error:
        log.info("message %s: %s", begun.message_id, error.code)
        return None


def effect_of_response(registry: Registry, listener: Listener, response: object) -> Effect:
    """What a handler returned comes to; raises `TypeError` if it returned something else."""
    if response is None:
        return Nothing()
    if not isinstance(response, HandlerResponse):
        raise TypeError(f"a handler returns a HandlerResponse or None, not {type(response).__name__}")
    payload = response.payload
    if is_system_message(payload):
        return _refused(SystemErrorMessage.validation())
    if response.kind is ResponseKind.RESPOND:
        return _written(payload, Respond)
    target = registry.route(listener, response.to, payload.root_tag())
    if target is None:
        return _refused(SystemErrorMessage.routing())
    if target is listener:
        return _written(payload, Iterate)
    if type(payload) is not target.payload:
        return _written(payload, lambda text: _refused(Huh.of(text.encode())))
    return _written(payload, lambda text: Forward(target.name, text))


def effect_of_turn(registry: Registry, listener: Listener, begun: BegunMessage) -> Effect | None:
    """What the agent's turn for this message came to; None while it is not over."""
    if begun.outcome is None:
        return timed_out(expired=True) if begun.is_overdue else None
    if begun.outcome is TurnStatus.PARTIAL:
        return huh(begun)  # out of steps: it could not do with the message what it should
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
    """The tools of which one ends a turn of this agent: one for each peer, `respond` and `think`."""
    peers = [each for name in listener.peers if (each := registry.get(name)) is not None and each is not listener]
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


def asked(registry: Registry, listener: Listener) -> RuntimeConfig:
    """How every turn of this agent is asked; raises `BadListener` where no turn can be asked so."""
    try:
        return RuntimeConfig(
            choices=choices(registry, listener),
            instructions=registry.usage_instructions(listener.name),
            remember=True,
        )
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise BadListener(f"listener {listener.name!r}: its agent cannot be asked with these peers: {found}") from None


def _from_text(listener: Listener, text: str) -> Effect:
    try:
        return Respond(text_of(listener.response.from_text(text)))
    except BadPayload:
        return _refused(Huh.of(text.encode()))


def _from_choice(registry: Registry, listener: Listener, begun: BegunMessage, data: JsonObject) -> Effect:
    """A choice with its arguments; or the fields of a `submit_result`, which count as a response."""
    name, arguments = data.get("choice", RESPOND), data.get("arguments")
    if arguments is None:
        arguments = _submitted(data)
    try:
        if name == RESPOND:
            return Respond(text_of(listener.response.from_value(arguments)))
        if name == THINK:
            return Iterate(text_of(Thought.from_value(arguments)))
        target = registry.route(listener, str(name).removeprefix(SEND), "")
        if target is None:
            return _refused(SystemErrorMessage.routing())
        sent = text_of(target.payload.from_value(arguments))
        return Iterate(sent) if target is listener else Forward(target.name, sent, begun.agent_turn_id)
    except BadPayload:
        return _refused(Huh.of(json.dumps(arguments).encode()))


def _submitted(data: JsonObject) -> JsonValue:
    fields = data.get("fields")
    if not isinstance(fields, list):
        return None
    return {str(each.get("name")): each.get("value") for each in fields if isinstance(each, dict)}


def _written(payload: Payload, effect: Callable[[str], Effect]) -> Effect:
    try:
        return effect(text_of(payload))
    except BadPayload:
        return _refused(SystemErrorMessage.validation())


def _refused(message: Payload) -> Iterate:
    """What the sender hears in its own place: the thread stays alive."""
    return Iterate(text_of(message), system=True)
