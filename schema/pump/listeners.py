"""Listeners: the participants of threads (protocol §9), declared in Python or YAML and checked together.

    @listener("greeter", payload=Greeting, description="Greets people.", answers=[Greeted])
    async def greet(payload: Greeting, metadata: HandlerMetadata) -> HandlerResponse | None:
        return HandlerResponse.respond(Greeted(text=f"Hello, {payload.name}"))

A decorated handler is a `Listener`. Declaring it registers nothing: a program names the modules and files of its
listeners and makes one `Registry` of them.
"""

import inspect
import reprlib
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast

from pydantic import Field

from turnstile.schema.base import Strict
from turnstile.schema.errors import BadRequest, ConfigError
from turnstile.schema.ids import AgentId, token
from turnstile.schema.pump.declared import DeclaredListener, DeclaredPayload
from turnstile.schema.pump.documents import Root, read_json
from turnstile.schema.pump.payloads import Payload, form_of
from turnstile.schema.pump.peers import tool_instructions, usage_instructions
from turnstile.schema.pump.primitives import HandlerMetadata, HandlerResponse, Huh, SystemErrorMessage, Text
from turnstile.schema.pump.shapes import BadPayloadClass
from turnstile.schema.pump.threads import Serves

Handler: TypeAlias = Callable[[Any, HandlerMetadata], Awaitable[HandlerResponse | None]]
"""`async def handler(payload, metadata)`. The payload is a request, an answer, or a message of the pump."""

T = TypeVar("T")
SEND = "send_"
"""Before a peer's name: the tool of an agent that sends a message to it."""
RESPOND = "respond"
THINK = "think"
_RESERVED_NAMES = frozenset({"system", RESPOND, THINK})
_LONGEST_SECONDS = 86_400
_LONGEST_NAME = 59
"""Such that the tool name `send_{name}` has at most 64 characters."""


class Thought(Payload, tag="thought"):
    """What an agent that thinks again says to itself."""

    reasoning: str


@dataclass(frozen=True, slots=True)
class Listener:
    """A participant: a handler, or an agent of the project's roster.

    A listener with `agent` may address only its `peers` and itself; others may address any listener. `answers` are the
    payloads it sends that no listener takes: its responses and messages to itself. The first one is the response of a
    roster agent.
    """

    name: str
    payload: type[Payload]
    description: str
    handler: Handler | None = None
    agent_id: AgentId | None = None
    agent: bool = False
    peers: tuple[str, ...] = ()
    answers: tuple[type[Payload], ...] = ()
    deadline_seconds: float = 60.0
    """How long its handler, or one turn of its agent, may take."""
    retries: int = 0
    """How often its handler may run again after its worker died; use more than 0 only if a repeat does no harm."""
    place: str = field(default="", compare=False, repr=False)
    """Where it is declared, as `file:line`, or the YAML file; for error messages."""

    def __post_init__(self) -> None:
        if not self.place:
            object.__setattr__(self, "place", _declared_at())

    @property
    def response(self) -> type[Payload]:
        """The response payload of a roster agent."""
        return self.answers[0] if self.answers else Text


class ListenerEntry(Strict):
    """A listener as a YAML file declares it; payloads and handlers are import paths (`package.module:name`)."""

    name: str
    """1 to 59 characters of A-Z a-z 0-9 _ -; others address it by this name."""
    description: str
    """What it does; agents choose their peers by it."""
    payload: str
    """The class of the payload it takes."""
    handler: str | None = None
    """The function that handles its messages; either this or `agent_id` is given."""
    agent_id: str | None = None
    """The agent of the project's roster that handles its messages."""
    agent: bool = False
    """Whether it is an agent, which may address only its peers and itself; always true with `agent_id`."""
    peers: list[str] = Field(default_factory=list)
    """The listeners that an agent may address."""
    answers: list[str] = Field(default_factory=list)
    """Classes of payloads that it sends and no listener takes; the first is the response of a roster agent."""
    deadline_seconds: float = 60.0
    """How long its handler, or one turn of its agent, may take; at most a day."""
    retries: int = 0
    """How often its handler may run again after its worker died; use more than 0 only if a repeat does no harm."""


class ListenerFile(Strict):
    """A YAML file of listeners, which `[pump].listeners` names."""

    listeners: list[ListenerEntry]
    """The listeners, in any order."""


class BadListener(ConfigError):
    """A listener cannot be registered; the message names it and says what to do."""

    code: str = "bad_listener"

    def __init__(self, message: str, listener: Listener | None = None) -> None:
        super().__init__(message)
        self.listener = listener
        """The faulty listener, if the error is about one."""


def _bad(listener: Listener, problem: str) -> BadListener:
    # A listener without a line was declared in a YAML file: `place` names the file.
    place = f" ({listener.place})" if listener.place.rpartition(":")[2].isdigit() else ""
    return BadListener(f"listener {listener.name!r}: {problem}{place}", listener)


def _declared_at() -> str:
    """The line that declares a listener: the innermost frame outside of this module."""
    frame = sys._getframe(1)  # noqa: SLF001 -- `inspect.stack` reads every file on the way
    while frame.f_back is not None and frame.f_globals.get("__name__") in {__name__, "dataclasses"}:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def listener(
    name: str,
    *,
    payload: type[Payload],
    description: str,
    agent: bool = False,
    peers: Iterable[str] = (),
    answers: Iterable[type[Payload]] = (),
    deadline_seconds: float = 60.0,
    retries: int = 0,
) -> Callable[[Handler], Listener]:
    """Declare a handler as a listener; see `Listener`."""

    def declare(handler: Handler) -> Listener:
        return Listener(
            name=name,
            payload=payload,
            description=description,
            handler=handler,
            agent=agent,
            peers=_several(peers),
            answers=_several(answers),
            deadline_seconds=deadline_seconds,
            retries=retries,
        )

    return declare


def _several(items: Iterable[T]) -> tuple[T, ...]:
    """`items` as a tuple; a single string or class is returned unchanged, and the registry then refuses it."""
    known = cast("object", items)
    alone = isinstance(known, str | type) or not isinstance(known, Iterable)
    return cast("tuple[T, ...]", known) if alone else tuple(items)


class Registry:
    """The listeners of a program, checked together; raises `BadListener`, which names the faulty one."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._by_name: dict[str, Listener] = {}
        self._by_tag: dict[str, Listener] = {}
        self._classes: dict[str, type[Payload]] = {c.root_tag(): c for c in (Huh, SystemErrorMessage)}
        for listener in listeners:
            self._add(listener)
        for listener in self._by_name.values():
            self._check_peers(listener)
            for payload in (*listener.answers, listener.response, Thought):
                self._know(listener, payload)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def listeners(self) -> Mapping[str, Listener]:
        """The listeners by name."""
        return MappingProxyType(self._by_name)

    def serves(self, worker_target: str) -> Serves:
        """The listeners and payloads with which a worker signs on for the target."""
        payloads = sorted(form_of(c).name for c in self._classes.values())
        return Serves(worker_target, tuple(sorted(self._by_name)), tuple(payloads))

    def declared(self) -> list[DeclaredListener]:
        """The listeners by name as operators see them, with all XSDs."""
        return [
            DeclaredListener(
                listener=name,
                description=listener.description,
                agent_id=listener.agent_id,
                is_agent=listener.agent,
                peers=listener.peers,
                root_tag=listener.payload.root_tag(),
                xsd=listener.payload.xsd().decode(),
                answers=[
                    _declared(answer)
                    for answer in (listener.answers or ((listener.response,) if listener.agent_id else ()))
                ],
            )
            for name, listener in sorted(self._by_name.items())
        ]

    def get(self, name: str) -> Listener | None:
        """The listener of this name."""
        return self._by_name.get(name)

    def route(self, sender: Listener, to: str | None, tag: str) -> Listener | None:
        """The target of the sender's message, by name or by root tag; None if there is none or it is forbidden."""
        target = self._by_tag.get(tag) if to is None else self._by_name.get(to)
        if target is None or (sender.agent and target is not sender and target.name not in sender.peers):
            return None
        return target

    def read(self, root: Root) -> Payload | None:
        """The payload of a document, by its root tag; None if no listener has the tag. Raises `BadPayload`."""
        payload_class = self._classes.get(root.tag)
        return None if payload_class is None else payload_class.from_root(root)

    def read_json(self, data: bytes, expected: type[Payload] | None) -> Payload | None:
        """The payload of a JSON object, as `expected` if its keys fit that class; raises `BadPayload`.

        An object has no tag. If it does not fit `expected`, it is read as the first other payload that it fits, and the
        caller refuses the result; so an object takes equally long whether it is accepted or not.
        """
        value = read_json(data)
        classes = [x.payload for x in self._by_name.values()]
        fitting = [c for c in (expected, *classes) if c is not None and c.has_fields(value)]
        return fitting[0].from_value(value) if fitting else None

    def has_payload(self, tag: str) -> bool:
        """Whether a listener takes this payload."""
        return tag in self._by_tag

    def usage_instructions(self, name: str) -> str:
        """The instructions about its peers for an agent's handler; empty for a plain handler."""
        if not self._by_name[name].agent:
            return ""
        return usage_instructions({peer.name: (peer.description, peer.payload) for peer in self._peers(name)})

    def tool_instructions(self, name: str) -> str:
        """The instructions about its peers and its tools for an agent of the roster."""
        peers = {peer.name: peer.description for peer in self._peers(name)}
        return tool_instructions(peers, send=SEND, respond=RESPOND, think=THINK)

    def _peers(self, name: str) -> list[Listener]:
        return [self._by_name[peer] for peer in self._by_name[name].peers if peer != name]

    def _add(self, new: Listener) -> None:
        problem = _problem(new)
        if problem is None and new.name in self._by_name:
            problem = "the name is taken: give each listener its own"
        tag = new.payload.root_tag() if problem is None else ""
        if problem is None and (other := self._by_tag.get(tag)) is not None:
            problem = f"its payload's root tag {tag!r} is that of listener {other.name!r}: tags select listeners"
        if problem is not None:
            raise _bad(new, problem)
        self._by_name[new.name] = self._by_tag[tag] = new
        self._know(new, new.payload)

    def _know(self, owner: Listener, payload: type[Payload]) -> None:
        known = self._classes.setdefault(payload.root_tag(), payload)
        if known is not payload:
            names = f"{known.__qualname__} and {payload.__qualname__}"
            raise _bad(owner, f"{names} have one root tag: give one another")

    def _check_peers(self, listener: Listener) -> None:
        if listener.peers and not listener.agent:
            raise _bad(listener, "only agents have peers: add agent=True, or leave them out")
        if unknown := [peer for peer in listener.peers if peer not in self._by_name]:
            known = ", ".join(sorted(self._by_name))
            raise _bad(listener, f"no listener is named {', '.join(unknown)}; there are {known}")


def _declared(payload: type[Payload]) -> DeclaredPayload:
    return DeclaredPayload(root_tag=form_of(payload).name, xsd=payload.xsd().decode())


def _problem(new: Listener) -> str | None:
    """What is wrong with a listener without regard to others, and what to do; None if nothing is."""
    if (problem := _bad_types(new)) is not None:
        return problem
    words = new.name.replace("-", "").replace("_", "")
    if not (words.isascii() and words.isalnum() and len(new.name) <= _LONGEST_NAME):
        return f"a name is 1 to {_LONGEST_NAME} characters of A-Z a-z 0-9 _ -"
    if new.name.lower() in _RESERVED_NAMES:
        return "the name is reserved: choose another"
    if not new.description.strip():
        return "it has no description: say what it does, others choose by it"
    if (new.handler is None) == (new.agent_id is None):
        return "it needs a handler or an agent of the roster, and not both"
    if new.handler is not None and (problem := _bad_handler(new.handler)) is not None:
        return problem
    if new.agent_id is not None and not new.agent:
        return "an agent of the roster is an agent: add agent=True"
    if new.agent_id is not None and (problem := _bad_agent_id(new.agent_id)) is not None:
        return problem
    if len(set(new.peers)) < len(new.peers):
        return "it names a peer twice: name each once"
    if (problem := _bad_payloads((new.payload, *new.answers))) is not None:
        return problem
    if not 0 < new.deadline_seconds <= _LONGEST_SECONDS:
        return f"deadline_seconds must be more than 0, and {_LONGEST_SECONDS} (a day) at most"
    if new.retries < 0:
        return "retries must be 0 or more"
    return None


def _bad_types(new: Listener) -> str | None:
    """Which field has a wrong type, since Python does not check types; None if none has."""
    values: dict[str, object] = {f.name: getattr(new, f.name) for f in fields(new)}
    for name in ("name", "description"):
        if not isinstance(values[name], str):
            return f"{name} must be a text, not {_shown(values[name])}"
    for name, of in (("peers", "names"), ("answers", "payload classes")):
        if not isinstance(values[name], tuple):
            return f"{name} must be a list of {of}, not {_shown(values[name])}"
    if wrong := [p for p in cast("tuple[object, ...]", values["peers"]) if not isinstance(p, str)]:
        return f"peers must be a list of names, and {_shown(wrong[0])} is none"
    if not isinstance(values["agent"], bool):
        return f"agent must be True or False, not {_shown(values['agent'])}"
    if isinstance(values["deadline_seconds"], bool) or not isinstance(values["deadline_seconds"], int | float):
        return f"deadline_seconds must be a number of seconds, not {_shown(values['deadline_seconds'])}"
    if isinstance(values["retries"], bool) or not isinstance(values["retries"], int):
        return f"retries must be a number of repeats, not {_shown(values['retries'])}"
    return None


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def _bad_handler(handler: object) -> str | None:
    """Why the handler cannot be awaited with a payload and metadata; None if it can."""
    if not callable(handler):
        return f"its handler is no function, but {_shown(handler)}"
    if inspect.isasyncgenfunction(handler):
        return "its handler is an async generator: let it return its one HandlerResponse, without `yield`"
    if not inspect.iscoroutinefunction(handler):
        return "its handler is synchronous: declare it with `async def`"
    signature = inspect.signature(handler)
    try:
        signature.bind(None, None)
    except TypeError:
        return f"its handler takes {signature}: declare it as `async def handler(payload, metadata)`"
    return None


def _bad_payloads(classes: Iterable[object]) -> str | None:
    for payload_class in classes:
        if not (isinstance(payload_class, type) and issubclass(payload_class, Payload)):
            return f"{payload_class!r} is no payload: derive it from turnstile.schema.pump.payloads.Payload"
        if issubclass(payload_class, Huh | SystemErrorMessage):
            return f"{payload_class.__qualname__} is the pump's own: only the pump sends it"
        try:
            payload_class.root_tag()
        except BadPayloadClass as error:
            return str(error)
    return None


def _bad_agent_id(value: AgentId) -> str | None:
    try:
        token(value, "agent_id")
    except BadRequest as error:
        return str(error)
    return None
