"""What handlers' responses and agents' deliverables come to (protocol §9): every branch, without a server."""

import base64
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from turnstile.rules.hop import BegunMessage, Effect, Forward, Iterate, NoMessage, Respond
from turnstile.rules.routing import (
    choices,
    effect_of_response,
    effect_of_turn,
    huh,
    read_payload,
    timed_out,
    turn_settings,
    unreachable,
    unreadable,
)
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.profiles import Choice
from turnstile.schema.pump.documents import LIMITS
from turnstile.schema.pump.listeners import BadListener, Listener, Registry, Thought
from turnstile.schema.pump.payloads import Payload, form_of
from turnstile.schema.pump.primitives import (
    CORE_NAMESPACE,
    HandlerMetadata,
    HandlerResponse,
    Huh,
    SystemErrorMessage,
    Text,
)
from turnstile.schema.pump.threads import MessageId, MessageKind, MessageStatus, SegmentId, ThreadId
from turnstile.schema.states import TurnStatus


class Order(Payload, tag="order"):
    """What to do."""

    item: str
    times: int = 1


class Report(Payload, tag="report"):
    """What was done."""

    words: str


class Sum(Payload, tag="sum"):
    """Two numbers, so no plain text."""

    left: int
    right: int


class Total(Payload, tag="total"):
    """What they come to."""

    value: int


class Basket(Payload, tag="basket"):
    """Many."""

    items: list[int]


class Stray(Payload, tag="stray"):
    """Nobody's."""

    text: str = ""


async def handle(_: Payload, __: HandlerMetadata) -> HandlerResponse | None:
    """Never called here."""
    raise NotImplementedError


CLERK = Listener("clerk", Order, "Does it.", handler=handle, answers=(Report,))
ADDER = Listener("adder", Sum, "Adds.", handler=handle, answers=(Total,))
BOSS = Listener("boss", Text, "Decides.", agent_id=AgentId("b"), agent=True, peers=("adder", "boss"), answers=(Report,))
COUNTER = Listener("counter", Thought, "Counts.", agent_id=AgentId("c"), agent=True, answers=(Total,))
REGISTRY = Registry([CLERK, ADDER, BOSS, COUNTER])
TURN = AgentTurnId("turn")
ROUTING = '<SystemError xmlns=""><code>routing</code>'
VALIDATION = '<SystemError xmlns=""><code>validation</code>'
TIMEOUT = '<SystemError xmlns=""><code>timeout</code>'


def begun(payload: str = "<order><item>tea</item></order>", **fields: Any) -> BegunMessage:
    """A message that a listener has in hand."""
    known: dict[str, Any] = {
        "was": MessageStatus.PENDING,
        "message_id": MessageId("m"),
        "thread_id": ThreadId("t"),
        "request_id": MessageId("m"),
        "hop": 0,
        "attempt": 1,
        "segment_id": SegmentId("s"),
        "from_id": "boss",
        "kind": MessageKind.REQUEST,
        "payload": payload,
        "listener": "clerk",
        "parent_id": None,
        "parent_listener": None,
        "depth": 1,
        "requester": "user",
        "context_headers": {},
        "is_overdue": False,
    }
    empty = ("output_box_id", "caller_turn_id", "caller_agent_id", "agent_turn_id", "deadline", "outcome", "error_code")
    nothing: dict[str, Any] = dict.fromkeys((*empty, "deliverable"))
    return BegunMessage.model_construct(**{**nothing, **known, **fields})


def over(status: TurnStatus = TurnStatus.SUCCESS, deliverable: JsonObject | None = None, **fields: Any) -> BegunMessage:
    """A message whose agent's turn is over."""
    waited = {"was": MessageStatus.WAITING, "agent_turn_id": TURN}
    return begun(outcome=status, deliverable=deliverable, **waited, **fields)


def text_card(text: str) -> JsonObject:
    """A deliverable of plain text."""
    return {"__type__": "TextContent", "text": text}


def json_card(data: Any) -> JsonObject:
    """A deliverable of JSON."""
    return {"__type__": "JsonContent", "data": data}


def chose(name: str, arguments: Any) -> JsonObject:
    """A deliverable that was made of a choice."""
    return json_card({"choice": name, "arguments": arguments})


def is_huh(effect: Effect | None, attempt: str) -> bool:
    """Whether somebody hears `huh` for this."""
    assert isinstance(effect, Respond | Iterate)
    assert effect.system
    given = Huh.from_xml(effect.payload.encode())
    return base64.b64decode(given.original_attempt).decode() == attempt


def tells(effect: Effect | None, beginning: str) -> bool:
    """Whether its sender hears this in its own place."""
    return isinstance(effect, Iterate) and effect.system and effect.payload.startswith(beginning)


# What comes in.


@pytest.mark.parametrize(
    ("payload", "parent"),
    [
        ("<order><item>tea</item></order>", None),
        ("<order><item>tea</item></order>", "s0"),
        ("\ufeff\n```xml\n<order><item>tea</item></order>\n```\n", "s0"),
        ('{"item": "tea"}', None),
        ('  {"item": "tea", "times": 1}', None),
    ],
)
def test_a_request_is_the_listeners_own_payload(payload: str, parent: str | None) -> None:
    assert read_payload(REGISTRY, CLERK, begun(payload, parent_id=parent)) == Order(item="tea")


@pytest.mark.parametrize(
    ("payload", "parent"),
    [
        ('{"item": "tea"}', "s0"),  # only from outside is JSON taken
        ('{"item": 1}', None),
        ("{", None),
        ("", None),
        ("tea", None),
        ("<order><item>tea</item>", None),
        ("<order><item>tea</item><price>1</price></order>", None),
        ("<order><item>tea</item></order><order><item>tea</item></order>", None),
        ("<report><words>tea</words></report>", None),  # known, and not its own
        ("<stray><text></text></stray>", None),
        ("<!DOCTYPE order><order><item>tea</item></order>", None),
    ],
)
def test_what_is_not_its_own_payload_cannot_be_read(payload: str, parent: str | None) -> None:
    assert read_payload(REGISTRY, CLERK, begun(payload, parent_id=parent)) is None


@pytest.mark.parametrize("kind", [MessageKind.RESPONSE, MessageKind.SELF, MessageKind.SYSTEM])
def test_an_answer_is_whosever_payload_it_is(kind: MessageKind) -> None:
    for payload in (Report(words="done"), Total(value=3), Thought(reasoning="so"), SystemErrorMessage.timeout()):
        assert read_payload(REGISTRY, CLERK, begun(payload.to_xml().decode(), kind=kind)) == payload
    for payload in ("<stray><text></text></stray>", "<total><value>x</value></total>", '{"value": 1}'):
        assert read_payload(REGISTRY, CLERK, begun(payload, kind=kind)) is None


def test_who_hears_of_what_cannot_be_read() -> None:
    """Its sender; a listener in its own place where it said so itself, or waits for an answer whose sender is gone."""
    request = unreadable(begun("<bad/>"))
    assert isinstance(request, Respond)
    assert is_huh(request, "<bad/>")
    own = unreadable(begun("<bad/>", kind=MessageKind.SELF))
    assert isinstance(own, Iterate)
    assert is_huh(own, "<bad/>")
    assert tells(unreadable(begun("<a secret/>", kind=MessageKind.RESPONSE)), VALIDATION)
    assert isinstance(unreadable(begun("<bad/>", kind=MessageKind.SYSTEM)), Respond)


def test_a_huh_gives_no_others_words_on_and_ends_a_turn_that_is_out() -> None:
    assert not huh(begun()).expired
    assert huh(begun(was=MessageStatus.WAITING, agent_turn_id=TURN)).expired
    assert not huh(over(TurnStatus.PARTIAL)).expired
    for kind in (MessageKind.RESPONSE, MessageKind.SELF, MessageKind.SYSTEM):
        assert huh(begun("<secret/>", kind=kind)).payload.startswith(VALIDATION)


def test_the_pumps_answers_name_no_reason() -> None:
    assert (unreachable().payload.startswith(ROUTING), unreachable().system, unreachable().expired) == (
        True,
        True,
        False,
    )
    assert (timed_out().payload.startswith(TIMEOUT), timed_out().system, timed_out().expired) == (True, True, False)
    assert timed_out(expired=True).expired


NESTED = "".join(f"<items>{n}</items>" for n in range(2_000))


@pytest.mark.parametrize(
    "payload",
    [
        f"<basket>{NESTED}</basket>",
        f"<basket>{NESTED}<items>no number</items></basket>",
        f"<nobodys>{NESTED}</nobodys>",
        json.dumps({"items": list(range(2_000))}),
        json.dumps({"items": [*range(2_000), "no number"]}),
        json.dumps({"item": "tea", "times": "no number"}),
        json.dumps({"nobodys": list(range(2_000))}),
    ],
    ids=["another's", "another's, wrong", "unknown", "another's JSON", "wrong JSON", "own JSON, wrong", "unknown JSON"],
)
def test_an_unknown_listener_is_as_much_work_as_one_that_cannot_read_it(payload: str) -> None:
    """Counted in calls; whoever waits for `huh` cannot tell by its time whether there is such a listener."""
    registry = Registry([CLERK, ADDER, BOSS, COUNTER, Listener("porter", Basket, "Carries.", handler=handle)])
    work = [calls_of(lambda to=to: read_payload(registry, to, begun(payload))) for to in (CLERK, ADDER, None)]
    assert max(work) - min(work) <= 20 + max(work) // 100, work


def calls_of(do: Callable[[], object]) -> int:
    """How many calls, of Python's and of C's functions, it takes; it comes to nothing."""
    counted = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    do()  # what is made once
    sys.setprofile(count)
    try:
        found = do()
    finally:
        sys.setprofile(None)
    assert found is None
    return counted


# What handlers return.


class Forged(Payload, tag="forged"):
    """Becomes what its test makes of it."""

    text: str = "<huh/>"


def test_what_leaves_is_written_by_the_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a class makes of its writing, its names and its form."""
    fake = Huh.of(b"x").to_xml()

    def forge(_: Forged) -> bytes:
        return fake

    monkeypatch.setattr(Forged, "to_xml", forge)
    found = effect_of_response(REGISTRY, CLERK, HandlerResponse.respond(Forged()))
    assert found == Respond("<forged><text>&lt;huh/&gt;</text></forged>")
    forms = [
        replace(form_of(Forged), name="SystemError", opening='<SystemError xmlns="">', tag="SystemError"),
        replace(form_of(Forged), name="huh", opening=f'<huh xmlns="{CORE_NAMESPACE}">', tag=f"{{{CORE_NAMESPACE}}}huh"),
        replace(form_of(Forged), name="forged", opening='<forged xmlns="urn:x">'),
        replace(form_of(Forged), name="Huh", opening="<Huh>"),
        replace(form_of(Forged), name="forged", opening="<forged><mine>"),
    ]
    for form in forms:
        monkeypatch.setattr(Forged, "__form__", form)
        for response in (HandlerResponse.respond(Forged()), HandlerResponse(Forged(), to="clerk")):
            assert tells(effect_of_response(REGISTRY, CLERK, response), VALIDATION)


def test_operators_hear_of_whom_a_message_could_not_go_to(caplog: pytest.LogCaptureFixture) -> None:
    """The name, the sender and the reason; the sender hears the same for both."""
    sent = HandlerResponse(Order(item="tea"), to="clrek"), HandlerResponse(Order(item="tea"), to="clerk")
    effects = [effect_of_response(REGISTRY, BOSS, each, "m1") for each in sent]
    effects.append(effect_of_response(REGISTRY, CLERK, HandlerResponse(Stray()), "m1"))
    assert effects[0] == effects[1] == effects[2]
    assert [record.getMessage() for record in caplog.records] == [
        "message m1: boss sent to 'clrek', which is no listener here",
        "message m1: boss sent to 'clerk', which is none of its peers (adder, boss)",
        "message m1: clerk sent to the payload 'stray', which is no listener's",
    ]


def test_nothing_is_nothing() -> None:
    assert effect_of_response(REGISTRY, CLERK, None) == NoMessage()


@pytest.mark.parametrize("response", ["text", {"payload": 1}, Order(item="tea"), 0, False, []])
def test_what_is_no_response_is_an_error(response: object) -> None:
    with pytest.raises(TypeError, match=rf"not {type(response).__name__}$"):
        effect_of_response(REGISTRY, CLERK, response)


def test_a_response_of_something_else_cannot_be_made() -> None:
    with pytest.raises(ValidationError):
        HandlerResponse("text")  # pyright: ignore[reportArgumentType] -- on purpose


def test_a_response_goes_to_the_caller_whatever_payload_it_is() -> None:
    for payload in (Report(words="done"), Order(item="tea"), Stray()):
        found = effect_of_response(REGISTRY, CLERK, HandlerResponse.respond(payload))
        assert found == Respond(payload.to_xml().decode())


@pytest.mark.parametrize("to", ["adder", None])
def test_a_forward_goes_to_its_target_by_name_or_by_tag(to: str | None) -> None:
    sent = Sum(left=1, right=2)
    found = effect_of_response(REGISTRY, CLERK, HandlerResponse(sent, to=to))
    assert found == Forward("adder", sent.to_xml().decode())


@pytest.mark.parametrize(
    ("payload", "to"), [(Order(item="again"), "clerk"), (Order(item="again"), None), (Stray(), "clerk")]
)
def test_a_message_to_itself_stays_in_its_place(payload: Payload, to: str | None) -> None:
    assert effect_of_response(REGISTRY, CLERK, HandlerResponse(payload, to=to)) == Iterate(payload.to_xml().decode())


def test_an_unknown_target_a_forbidden_one_and_an_unknown_tag_are_told_alike() -> None:
    responses = [
        (CLERK, HandlerResponse(Order(item="x"), to="nosuch")),
        (CLERK, HandlerResponse(Stray())),
        (BOSS, HandlerResponse(Order(item="x"), to="clerk")),
        (BOSS, HandlerResponse(Order(item="x"))),
        (BOSS, HandlerResponse(Order(item="x"), to="nosuch")),
        (COUNTER, HandlerResponse(Sum(left=1, right=1), to="adder")),
    ]
    found = {str(effect_of_response(REGISTRY, sender, response)) for sender, response in responses}
    assert len(found) == 1
    assert tells(effect_of_response(REGISTRY, *responses[0]), ROUTING)


def test_an_agent_reaches_its_peers_and_itself() -> None:
    sent = Sum(left=1, right=2)
    assert isinstance(effect_of_response(REGISTRY, BOSS, HandlerResponse(sent)), Forward)
    assert isinstance(effect_of_response(REGISTRY, BOSS, HandlerResponse(Text(text="hm"))), Iterate)
    assert isinstance(
        effect_of_response(REGISTRY, COUNTER, HandlerResponse(Thought(reasoning="hm"), to="counter")), Iterate
    )


def test_a_payload_that_its_peer_does_not_take_comes_back_to_an_agent() -> None:
    found = effect_of_response(REGISTRY, BOSS, HandlerResponse(Report(words="x"), to="adder"))
    assert isinstance(found, Iterate)
    assert is_huh(found, "<report><words>x</words></report>")


class Sums(Sum, tag="sums"):
    """A subclass is another payload."""


def test_a_subclass_of_what_its_target_takes_is_another_payload() -> None:
    found = effect_of_response(REGISTRY, BOSS, HandlerResponse(Sums(left=1, right=2), to="adder"))
    assert is_huh(found, "<sums><left>1</left><right>2</right></sums>")


@pytest.mark.parametrize("payload", [Report(words="x"), Sums(left=1, right=2), Stray(), Order(item="x" * LIMITS.size)])
def test_a_plain_handler_cannot_tell_which_listeners_are_there(payload: Payload) -> None:
    """Whatever it sends that no target takes: to one that is there, and to one that is not."""
    heard = {
        str(effect_of_response(REGISTRY, CLERK, HandlerResponse(payload, to=name)))
        for name in ("adder", "boss", "counter", "nobody", "no-such")
    }
    assert len(heard) == 1


@pytest.mark.parametrize("payload", [Huh.of(b"x"), SystemErrorMessage.timeout()])
def test_the_pumps_own_messages_are_nobody_elses(payload: Payload) -> None:
    for response in (HandlerResponse(payload, to="adder"), HandlerResponse(payload), HandlerResponse.respond(payload)):
        assert tells(effect_of_response(REGISTRY, CLERK, response), VALIDATION)


def test_a_payload_that_is_too_large_to_travel_is_refused() -> None:
    huge = "x" * (LIMITS.size + 1)
    responses = [
        HandlerResponse.respond(Report(words=huge)),
        HandlerResponse(Order(item=huge), to="clerk"),
        HandlerResponse(Text(text=huge), to="boss"),
        HandlerResponse(Order(item=huge), to="adder"),
    ]
    for response in responses:
        assert tells(effect_of_response(REGISTRY, CLERK, response), VALIDATION)


# What agents' turns come to.


def test_a_turn_that_is_out_is_waited_for_until_it_is_late() -> None:
    waits = begun(was=MessageStatus.WAITING, agent_turn_id=TURN)
    assert effect_of_turn(REGISTRY, BOSS, waits) is None
    late = effect_of_turn(REGISTRY, BOSS, waits.model_copy(update={"is_overdue": True}))
    assert late == timed_out(expired=True)


def test_a_turn_that_ended_in_time_counts_however_late_it_is_heard_of() -> None:
    heard = over(deliverable=text_card("done"), is_overdue=True)
    assert effect_of_turn(REGISTRY, BOSS, heard) == Respond("<report><words>done</words></report>")


@pytest.mark.parametrize("status", [TurnStatus.FAILED, TurnStatus.CANCELED, TurnStatus.TIMEOUT])
def test_a_turn_that_failed_is_told_as_a_timeout(status: TurnStatus) -> None:
    assert effect_of_turn(REGISTRY, BOSS, over(status, text_card("stopped"))) == timed_out()


def test_a_turn_out_of_steps_could_not_process_its_message() -> None:
    found = effect_of_turn(REGISTRY, BOSS, over(TurnStatus.PARTIAL, text_card("half"), payload="<text/>"))
    assert isinstance(found, Respond)
    assert is_huh(found, "<text/>")


@pytest.mark.parametrize(
    "deliverable",
    [None, {"__type__": "NoSuchContent"}, json_card([1]), json_card("text"), json_card(None), {}],
)
def test_a_deliverable_that_says_nothing_is_told_as_a_timeout(deliverable: JsonObject | None) -> None:
    assert effect_of_turn(REGISTRY, BOSS, over(deliverable=deliverable)) == timed_out()


def test_plain_text_is_a_response_where_it_fits() -> None:
    found = effect_of_turn(REGISTRY, BOSS, over(deliverable=text_card("a < b\n\u00e9")))
    assert found == Respond("<report><words>a &lt; b\n\u00e9</words></report>")
    for listener, text in ((COUNTER, "three"), (BOSS, "a \x01 b")):
        unfit = effect_of_turn(REGISTRY, listener, over(deliverable=text_card(text)))
        assert isinstance(unfit, Iterate)
        assert is_huh(unfit, text)


def test_planning_in_text_is_text() -> None:
    plan = '<todo-until condition="done">1. Ask boss. 2. Conclude.</todo-until> Starting with step 1...'
    found = effect_of_turn(REGISTRY, BOSS, over(deliverable=text_card(plan)))
    assert found == Respond(f"<report><words>{plan.replace('<', '&lt;').replace('>', '&gt;')}</words></report>")


def test_an_agent_without_answers_responds_with_text() -> None:
    alone = Listener("alone", Order, "Alone.", agent_id=AgentId("a"), agent=True)
    found = effect_of_turn(Registry([alone]), alone, over(deliverable=text_card("hi")))
    assert found == Respond("<text><text>hi</text></text>")


def of_choice(name: str, arguments: Any, listener: Listener = BOSS) -> Effect | None:
    return effect_of_turn(REGISTRY, listener, over(deliverable=chose(name, arguments)))


def test_the_choice_to_respond() -> None:
    assert of_choice("respond", {"words": "done"}) == Respond("<report><words>done</words></report>")
    assert of_choice("respond", {"value": 3}, COUNTER) == Respond("<total><value>3</value></total>")


def test_the_choice_to_think() -> None:
    found = of_choice("think", {"reasoning": "hm"})
    assert found == Iterate("<thought><reasoning>hm</reasoning></thought>")


def test_the_choice_to_send_names_the_turn_that_sends() -> None:
    found = of_choice("send_adder", {"left": 1, "right": 2})
    assert found == Forward("adder", "<sum><left>1</left><right>2</right></sum>", TURN)


def test_a_message_that_an_agent_sends_itself_stays_in_its_place() -> None:
    assert of_choice("send_boss", {"text": "hm"}) == Iterate("<text><text>hm</text></text>")


@pytest.mark.parametrize("name", ["send_clerk", "send_nosuch", "nosuch", "send_", "", "submit_result"])
def test_a_choice_of_nobody_or_of_no_peer_is_told_as_routing(name: str) -> None:
    assert tells(of_choice(name, {"item": "tea"}), ROUTING)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("respond", {"word": "x"}),
        ("respond", {}),
        ("respond", [1]),
        ("respond", "text"),
        ("think", {"reasoning": 1}),
        ("send_adder", {"left": 1}),
        ("send_adder", {"left": "one", "right": 2}),
        ("respond", {"words": "bad \x00 text"}),
    ],
)
def test_wrong_arguments_come_back(name: str, arguments: Any) -> None:
    found = of_choice(name, arguments)
    assert isinstance(found, Iterate)
    assert found.system
    assert found.payload.startswith("<huh ")


def submitted(*fields: Any) -> JsonObject:
    return json_card({"fields": list(fields)})


def test_the_fields_of_a_submission_are_a_response() -> None:
    named = submitted({"name": "words", "value": "done"})
    assert effect_of_turn(REGISTRY, BOSS, over(deliverable=named)) == Respond("<report><words>done</words></report>")


@pytest.mark.parametrize(
    "deliverable",
    [
        submitted(),
        submitted({"name": "other", "value": "x"}),
        submitted("words"),
        json_card({"fields": "words"}),
        json_card({"status": "closed"}),  # of a tool that ended the turn
        json_card({}),
    ],
)
def test_fields_that_make_no_response_come_back(deliverable: JsonObject) -> None:
    found = effect_of_turn(REGISTRY, BOSS, over(deliverable=deliverable))
    assert isinstance(found, Iterate)
    assert found.payload.startswith("<huh ")


# What agents are offered.


def test_an_agent_is_offered_its_peers_a_response_and_a_thought() -> None:
    offered = {choice.name: choice for choice in choices(REGISTRY, BOSS)}
    assert list(offered) == ["send_adder", "respond", "think"]
    assert "Adds." in offered["send_adder"].description
    assert set(parameters(offered["send_adder"])) == {"left", "right"}
    assert set(parameters(offered["respond"])) == {"words"}
    assert set(parameters(offered["think"])) == {"reasoning"}
    assert [choice.name for choice in choices(REGISTRY, COUNTER)] == ["respond", "think"]


def parameters(choice: Choice) -> JsonObject:
    found = choice.parameters["properties"]
    assert isinstance(found, dict)
    return found


def test_an_agent_is_told_of_its_peers() -> None:
    config = turn_settings(REGISTRY, BOSS)
    assert config.choices == choices(REGISTRY, BOSS)
    assert "# adder\nAdds.\nCall the tool send_adder." in (config.instructions or "")
    assert "calling the tool respond" in (config.instructions or "")
    assert "<" not in (config.instructions or "")
    assert "complete ALL sub-tasks" in (config.instructions or "")
    assert "# clerk" not in (config.instructions or "")


def test_an_agent_that_cannot_be_asked_is_named() -> None:
    """More peers than a request may offer."""
    peers = [
        Listener(f"p{number}", type(f"P{number}", (Payload,), {}), "One of many.", handler=handle)
        for number in range(256)
    ]
    names = tuple(peer.name for peer in peers)
    busy = Listener("busy", Order, "Knows all.", agent_id=AgentId("a"), agent=True, peers=names)
    with pytest.raises(BadListener, match=r"^listener 'busy': its agent cannot be asked with these peers: choices"):
        turn_settings(Registry([busy, *peers]), busy)
