"""The registry of listeners: what it refuses, naming the listener and the cure, and whom it finds for a message."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from turnstile.schema.ids import AgentId
from turnstile.schema.pump.documents import BadPayload, read_root
from turnstile.schema.pump.listeners import BadListener, Listener, Registry, Thought, listener
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.primitives import HandlerMetadata, HandlerResponse, Huh, SystemErrorMessage, Text


class Ask(Payload, tag="ask"):
    """A question."""

    text: str


class Look(Payload, tag="look"):
    """A look somewhere."""

    where: str


class Found(Payload, tag="found"):
    """What was there."""

    what: str


class OtherAsk(Payload, tag="ask"):
    """Another class with the tag of `Ask`."""

    other: str


class Spare(Payload):
    """Without a listener."""


async def handle(_: Payload, __: HandlerMetadata) -> HandlerResponse | None:
    """Never called here."""
    raise NotImplementedError


ASKER = Listener("asker", Ask, "Asks.", handler=handle, answers=(Found,))
LOOKER = Listener("looker", Look, "Looks.", agent_id=AgentId("l"), agent=True, peers=("asker",), answers=(Found,))


def named(name: str, **fields: Any) -> Listener:
    """A good listener, but for `fields`."""
    return replace(ASKER, name=name, **fields)


def refused(*listeners: Listener) -> str:
    """What is said of them."""
    with pytest.raises(BadListener) as error:
        Registry(listeners)
    assert error.value.code == "bad_listener"
    assert error.value.listener in listeners
    told, _, place = str(error.value).rpartition(" (")
    assert place.partition(":")[0] == __file__  # where it was declared
    return told


def test_a_decorated_handler_is_a_listener() -> None:
    @listener("greeter", payload=Ask, description="Greets.", peers=["asker"], answers=[Found], agent=True, retries=2)
    async def greet(payload: Ask, metadata: HandlerMetadata) -> HandlerResponse | None:
        return None

    assert (greet.name, greet.payload, greet.peers, greet.answers) == ("greeter", Ask, ("asker",), (Found,))
    assert (greet.agent, greet.agent_id, greet.retries, greet.deadline_seconds) == (True, None, 2, 60)
    assert greet.handler is not None
    assert greet.response is Found
    assert replace(greet, answers=()).response is Text


def test_a_registry_may_be_empty_or_hold_many() -> None:
    assert len(Registry()) == 0
    registry = Registry([ASKER, LOOKER])
    assert len(registry) == 2
    assert dict(registry.listeners) == {"asker": ASKER, "looker": LOOKER}
    assert registry.get("asker") is ASKER
    assert registry.get("nosuch") is None


@pytest.mark.parametrize("name", ["a", "A_b-1", "9", "n" * 59])
def test_good_names(name: str) -> None:
    assert Registry([named(name)]).get(name) is not None


@pytest.mark.parametrize("name", ["", "-", "_-_", "a b", "a.b", "a:b", "\u00e9t\u00e9", "\u0661", "n" * 60, "a\n"])
def test_bad_names(name: str) -> None:
    assert refused(named(name)) == f"listener {name!r}: a name is 1 to 59 characters of A-Z a-z 0-9 _ -"


@pytest.mark.parametrize("name", ["system", "System", "respond", "think", "THINK"])
def test_reserved_names(name: str) -> None:
    assert refused(named(name)) == f"listener {name!r}: the name is reserved: choose another"


def synchronous(_: Payload, __: HandlerMetadata) -> None:
    """As no handler may be."""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"description": ""}, "it has no description: say what it does, others choose by it"),
        ({"description": " \n"}, "it has no description: say what it does, others choose by it"),
        ({"handler": None}, "it needs a handler or an agent of the roster, and not both"),
        ({"agent_id": AgentId("a")}, "it needs a handler or an agent of the roster, and not both"),
        ({"handler": synchronous}, "its handler is synchronous: declare it with `async def`"),
        ({"handler": None, "agent_id": AgentId("a")}, "an agent of the roster is an agent: add agent=True"),
        ({"handler": None, "agent_id": AgentId("a b"), "agent": True}, "agent_id"),
        ({"handler": None, "agent_id": AgentId(""), "agent": True}, "agent_id"),
        ({"peers": ("x",)}, "only agents have peers: add agent=True, or leave them out"),
        ({"agent": True, "peers": ("x", "y")}, "no listener is named x, y; there are x1"),
        ({"agent": True, "peers": ("x1", "x1")}, "it names a peer twice: name each once"),
        ({"deadline_seconds": 0}, "deadline_seconds must be more than 0, and 86400 (a day) at most"),
        ({"deadline_seconds": -1}, "deadline_seconds must be more than 0, and 86400 (a day) at most"),
        ({"deadline_seconds": 86_401}, "deadline_seconds must be more than 0, and 86400 (a day) at most"),
        ({"deadline_seconds": float("nan")}, "deadline_seconds must be more than 0, and 86400 (a day) at most"),
        ({"deadline_seconds": float("inf")}, "deadline_seconds must be more than 0, and 86400 (a day) at most"),
        ({"retries": -1}, "retries must be 0 or more"),
        ({"payload": dict}, "<class 'dict'> is no payload: derive it from turnstile.schema.pump.payloads.Payload"),
        ({"payload": "Ask"}, "'Ask' is no payload: derive it from turnstile.schema.pump.payloads.Payload"),
        ({"payload": Payload}, "Payload has no form"),
        (
            {"answers": (Found, str)},
            "<class 'str'> is no payload: derive it from turnstile.schema.pump.payloads.Payload",
        ),
        ({"answers": (Payload,)}, "Payload has no form"),
    ],
)
def test_a_listener_that_is_wrong_by_itself_is_named(fields: dict[str, Any], told: str) -> None:
    assert refused(named("x1", **fields)).startswith(f"listener 'x1': {told}")


async def one(_: Payload) -> HandlerResponse | None:
    """Takes too little."""


async def generates(_: Payload, __: HandlerMetadata) -> Any:
    """Yields."""
    yield


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"handler": one}, "its handler takes (_: turnstile.schema.pump.payloads.Payload)"),
        ({"handler": generates}, "its handler is an async generator: let it return its one HandlerResponse"),
        ({"handler": "handle"}, "its handler is no function, but 'handle' (str)"),
        ({"deadline_seconds": "soon"}, "deadline_seconds must be a number of seconds, not 'soon' (str)"),
        ({"deadline_seconds": True}, "deadline_seconds must be a number of seconds, not True (bool)"),
        ({"deadline_seconds": float("nan")}, "deadline_seconds must be more than 0"),
        ({"peers": "asker", "agent": True}, "peers must be a list of names, not 'asker' (str)"),
        ({"peers": [Ask], "agent": True}, "peers must be a list of names, and <class"),
        ({"peers": None}, "peers must be a list of names, not None (NoneType)"),
        ({"answers": Found}, "answers must be a list of payload classes, not <class"),
        ({"retries": True}, "retries must be a number of repeats, not True (bool)"),
        ({"retries": 0.5}, "retries must be a number of repeats, not 0.5 (float)"),
        ({"agent": "yes"}, "agent must be True or False, not 'yes' (str)"),
        ({"description": None}, "description must be a text, not None (NoneType)"),
        ({"name": 5}, "name must be a text, not 5 (int)"),
    ],
)
def test_a_declaration_of_other_types_is_told_with_its_own_line(fields: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"name": "x1", "payload": Ask, "description": "Asks.", "handler": handle, **fields}
    name, handler = given.pop("name"), given.pop("handler")
    line = inspect.currentframe().f_lineno + 1  # pyright: ignore[reportOptionalMemberAccess] -- CPython has frames
    found = listener(name, **given)(handler)
    with pytest.raises(BadListener) as error:
        Registry([found])
    assert str(error.value).startswith(f"listener {name!r}: {told}")
    assert str(error.value).endswith(f"({__file__}:{line})")


def test_two_listeners_have_two_names_and_two_root_tags() -> None:
    assert (
        refused(ASKER, replace(ASKER, payload=Look))
        == "listener 'asker': the name is taken: give each listener its own"
    )
    tags = "listener 'second': its payload's root tag 'ask' is that of listener 'asker': tags select listeners"
    assert refused(ASKER, named("second")) == tags
    assert refused(ASKER, named("second", payload=OtherAsk)) == tags
    Registry([ASKER, named("Asker", payload=Look)])  # names differ by case, too


@pytest.mark.parametrize("answers", [(OtherAsk,), (Found, OtherAsk)])
def test_one_root_tag_is_one_class(answers: Sequence[type[Payload]]) -> None:
    told = "Ask and OtherAsk have one root tag: give one another"
    assert refused(ASKER, replace(LOOKER, answers=tuple(answers))) == f"listener 'looker': {told}"
    first = replace(LOOKER, answers=(OtherAsk,), peers=())
    assert refused(first, ASKER) == f"listener 'looker': {told}"


def test_the_pumps_own_classes_are_taken() -> None:
    class Mine(Payload, tag="thought"):
        words: str

    class Plain(Payload, tag="text"):
        words: str

    assert "Thought have one root tag" in refused(replace(ASKER, payload=Mine))
    assert "and Text have one root tag" in refused(replace(ASKER, payload=Plain, answers=()))
    for payload in (Huh, SystemErrorMessage):
        told = f"listener 'asker': {payload.__qualname__} is the pump's own: only the pump sends it"
        assert refused(replace(ASKER, payload=payload)) == refused(replace(ASKER, answers=(payload,))) == told


def test_answers_may_be_shared() -> None:
    registry = Registry([ASKER, replace(LOOKER, answers=(Found, Ask))])
    assert registry.read(read_root(b"<found><what>x</what></found>")) == Found(what="x")


def test_messages_are_found_by_name_or_else_by_tag() -> None:
    registry = Registry([ASKER, LOOKER])
    assert registry.route(ASKER, "looker", "whatever") is LOOKER
    assert registry.route(ASKER, None, "look") is LOOKER
    assert registry.route(ASKER, "asker", "look") is ASKER  # itself
    assert registry.route(ASKER, None, "ask") is ASKER
    for to, tag in (
        ("nosuch", "look"),
        ("", "look"),
        ("Looker", "look"),
        (None, "found"),
        (None, ""),
        (None, "looker"),
    ):
        assert registry.route(ASKER, to, tag) is None


def test_an_agent_reaches_its_peers_and_itself_only() -> None:
    third = Listener("third", Spare, "Is there.", handler=handle)
    registry = Registry([ASKER, LOOKER, third])
    assert registry.route(LOOKER, "asker", "") is ASKER
    assert registry.route(LOOKER, None, "ask") is ASKER
    assert registry.route(LOOKER, "looker", "") is LOOKER
    assert registry.route(LOOKER, None, "look") is LOOKER
    assert registry.route(LOOKER, "third", "") is None
    assert registry.route(LOOKER, None, "spare") is None
    agent = replace(third, agent=True)  # a handler that is an agent
    assert Registry([ASKER, LOOKER, agent]).route(agent, "asker", "") is None


def test_what_is_read_is_of_a_known_class() -> None:
    registry = Registry([ASKER, LOOKER])
    for payload in (Ask(text="x"), Look(where="x"), Found(what="x"), Thought(reasoning="x"), Huh.of(b"x")):
        assert registry.read(read_root(payload.to_xml())) == payload
    assert registry.read(read_root(SystemErrorMessage.routing().to_xml())) == SystemErrorMessage.routing()
    assert registry.read(read_root(b"<spare></spare>")) is None
    assert registry.read(read_root(b"<text><text>x</text></text>")) is None  # no listener here responds with text
    with pytest.raises(BadPayload):
        registry.read(read_root(b"<ask></ask>"))


def test_agents_are_told_of_their_peers_and_handlers_of_nothing() -> None:
    registry = Registry([ASKER, replace(LOOKER, peers=("asker", "looker"))])
    assert registry.usage_instructions("asker") == ""
    told = registry.usage_instructions("looker")
    assert "# asker" in told
    assert "Asks." in told
    assert "# looker" not in told
    alone = Registry([ASKER, replace(LOOKER, peers=())]).usage_instructions("looker")
    assert "complete ALL sub-tasks" in alone
    assert "#" not in alone
