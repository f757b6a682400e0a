"""A conversation as a chat: in order, calls beside their results, and never more than a page can hold."""

from datetime import UTC, datetime

from tests.support.ledger.agents import ALICE
from turnstile.gateway.console.people.chat_page import PAGE_CHARACTERS, ChatEntry, entries_of, running
from turnstile.ledger.access.chats import ChatCard, ChatTurn
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import (
    CardContent,
    CardType,
    FallbackDeliverable,
    JsonContent,
    Role,
    TextContent,
    ThoughtCall,
    ToolError,
    ToolResultContent,
    make_card,
)
from turnstile.schema.ids import AgentTurnId, CardId, StepId, ToolCallId
from turnstile.schema.states import SteerStatus, TurnStatus

NOW = datetime.now(UTC)
TURN = AgentTurnId("t1")


def turn(status: str = "success", named: AgentTurnId = TURN) -> ChatTurn:
    """A turn of a conversation; its deliverable is `d`."""
    over = status not in ("queued", "running", "suspended")
    return ChatTurn(
        agent_turn_id=named,
        created_at=NOW,
        status=status,
        started_at=None if status == "queued" else NOW,
        ended_at=NOW if over else None,
        error_code=None,
        error=None,
        deliverable_card_id=CardId("d") if over else None,
        asked="Hello?",
        action_tool=None,
        requester="token.a",
        waiting_tool_count=None,
        is_paused=False,
        rolled_back=False,
    )


def card(
    kind: CardType,
    content: CardContent | None,
    *,
    part: int = 1,
    step: int | None = 1,
    card_id: str = "c",
    call: str | None = None,
    calls: list[tuple[str, str]] | None = None,
    steer: SteerStatus | None = None,
) -> ChatCard:
    """A card of a turn; without content it is too large to be read."""
    named = None if call is None else ToolCallId(call)
    thought = [
        ThoughtCall(tool_call_id=ToolCallId(each), tool_name="find", arguments=text) for each, text in calls or ()
    ]
    made = make_card(
        CardId(card_id),
        kind,
        Role.ASSISTANT,
        content or TextContent(text=""),
        author=ALICE,
        tool_call=named,
        tool_calls=thought or None,
    )
    if content is None:
        made = made.model_copy(update={"content": None})
    return ChatCard(TURN, None if step is None else StepId(f"{TURN}-s{step}"), part, made, 70_000, steer)


def entry(*cards: ChatCard, status: str = "success") -> ChatEntry:
    """The entry of one turn."""
    [made] = entries_of([turn(status)], cards, (), 100)
    return made


def said(made: ChatEntry) -> list[tuple[str, str]]:
    """Who said what, in order."""
    return [(each.kind, each.text or ", ".join(call.name for call in each.calls)) for each in made.said]


def text(words: str) -> TextContent:
    """A text."""
    return TextContent(text=words)


def result(value: JsonObject | str | None, error: ToolError | None = None) -> ToolResultContent:
    """The result of a call."""
    status = TurnStatus.SUCCESS if error is None else TurnStatus.FAILED
    return ToolResultContent(status=status, result=value, error=error)


def test_calls_have_their_results_and_the_answer_is_said_once() -> None:
    made = entry(
        card(CardType.STEER, text("use it"), part=0, steer=SteerStatus.APPLIED),
        card(CardType.THOUGHT, text("I look."), calls=[("a", '{"q": 1}'), ("b", "{broken")]),
        card(CardType.TOOL_RESULT, result({"n": 1}), part=3, call="a"),
        card(CardType.TOOL_RESULT, result(None, ToolError(code="gone", message="try again")), part=3, call="b"),
        card(CardType.THOUGHT, text("Here it is."), step=2),
        card(CardType.DELIVERABLE, text("Here it is."), step=2, card_id="d"),
    )
    assert said(made) == [("person", "use it"), ("model", "I look."), ("calls", "find, find")]
    [first, second] = made.said[2].calls
    assert (first.status, first.arguments, first.result) == ("success", '{\n  "q": 1\n}', '{\n  "n": 1\n}')
    assert (second.status, second.arguments, second.error) == ("failed", "{broken", "gone: try again")
    assert made.delivered is not None
    assert (made.delivered.text, made.steps) == ("Here it is.", 2)


def test_a_call_without_a_result_waits_and_after_the_end_was_not_sent() -> None:
    call = card(CardType.THOUGHT, text(""), calls=[("a", "{}")])
    assert entry(call, status="suspended").said[0].calls[0].status == "waiting"
    assert entry(call).said[0].calls[0].status == "not_sent"


def test_what_is_delivered_is_told_by_its_kind() -> None:
    fields = JsonContent(data={"fields": [{"name": "n", "value": 1}, {"name": "why", "value": "so"}]})
    made = entry(card(CardType.DELIVERABLE, fields, card_id="d")).delivered
    assert made is not None
    assert made.fields == (("n", "1"), ("why", "so"))
    fallback = FallbackDeliverable(
        reason="model_failed", last_thought="almost", tool_results=[], terminal_status=TurnStatus.FAILED
    )
    made = entry(card(CardType.DELIVERABLE, JsonContent(data=fallback.model_dump(mode="json")), card_id="d")).delivered
    assert made is not None
    assert (made.text, made.fallback) == ("almost", "model_failed")
    made = entry(card(CardType.DELIVERABLE, JsonContent(data={"fields": []}), card_id="d")).delivered
    assert made is not None
    assert made.data == '{\n  "fields": []\n}'
    made = entry(card(CardType.DELIVERABLE, None, card_id="d")).delivered
    assert made is not None
    assert made.left_out == 70_000


def test_much_on_a_page_is_cut_so_that_all_of_it_fits() -> None:
    many = [
        card(CardType.THOUGHT, text("x" * 50_000), step=n, calls=[(f"{n}", f'"{"y" * 50_000}"')]) for n in range(1, 101)
    ]
    made = entry(*many)
    shown = sum(len(each.text) + sum(len(call.arguments) for call in each.calls) for each in made.said)
    assert shown <= 2 * PAGE_CHARACTERS
    assert all(each.left_out == 50_000 - len(each.text) for each in made.said if each.kind == "model")
    assert made.is_cut
    [alone] = entry(card(CardType.THOUGHT, text("x" * 15_000))).said
    assert (len(alone.text), alone.left_out) == (15_000, 0)


def test_the_turn_that_can_be_told_something_is_the_first_that_is_not_over() -> None:
    turns = [turn(), turn("running", AgentTurnId("t2")), turn("queued", AgentTurnId("t3"))]
    made = entries_of(turns, (), (), 100)
    now = running(made)
    assert now is not None
    assert (now.turn.agent_turn_id, [each.is_queued for each in made]) == ("t2", [False, False, True])
    assert running(made[:1]) is None
