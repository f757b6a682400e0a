"""What is cut off a conversation: always between turns, enough to fit, and no more than that."""

from hypothesis import given
from hypothesis import strategies as st

from turnstile.activities.prompt.memory import cut_cards, estimate, plan_cut, question, remembered
from turnstile.activities.prompt.messages import build_messages
from turnstile.schema.cards import Card, CardType, Role, TextContent, make_card
from turnstile.schema.ids import AgentTurnId, CardId
from turnstile.schema.profiles import Memory
from turnstile.schema.turns import TurnRef

OWN = AgentTurnId("own")
POLICY = Memory(keep="conversation", max_context_tokens=400, keep_last_turns=3)
TURN = TurnRef.model_construct(agent_turn_id=OWN, trace_id="t")


def card(turn: str, number: int, kind: CardType, text: str) -> Card:
    role = Role.USER if kind == CardType.INSTRUCTION else Role.ASSISTANT
    return make_card(CardId(f"{turn}-{number}"), kind, role, TextContent(text=text), author="a", turn=AgentTurnId(turn))


def turns(count: int, size: int = 200) -> list[Card]:
    """Turns of two cards each."""
    return [
        each
        for number in range(count)
        for each in (
            card(f"t{number}", 1, CardType.INSTRUCTION, f"q{number} " + "x" * size),
            card(f"t{number}", 2, CardType.THOUGHT, f"a{number} " + "y" * size),
        )
    ]


def size(cards: list[Card] | tuple[Card, ...]) -> int:
    asked = [card(OWN, 1, CardType.INSTRUCTION, "now")]
    return estimate(build_messages("Be kind.", cards, asked, ()))


def test_what_fits_is_left_alone() -> None:
    assert plan_cut(turns(2), POLICY, lambda cards: size(tuple(cards))) is None
    assert plan_cut((), POLICY, lambda _: 1_000_000) is None
    assert plan_cut(turns(50), Memory(keep="conversation"), lambda cards: size(tuple(cards))) is None


@given(count=st.integers(1, 40), length=st.integers(0, 2000), keep=st.integers(0, 8))
def test_a_cut_is_between_turns_and_makes_room(count: int, length: int, keep: int) -> None:
    policy = Memory(keep="conversation", max_context_tokens=400, keep_last_turns=keep)
    memory = turns(count, length)
    cut = plan_cut(memory, policy, lambda cards: size(tuple(cards)))
    if cut is None:
        assert size(tuple(memory)) <= 400
        return
    assert [*cut.dropped, *cut.kept] == memory
    assert cut.dropped
    whose = {each.metadata.agent_turn_id for each in cut.kept}
    assert len(whose) <= keep
    assert not whose & {each.metadata.agent_turn_id for each in cut.dropped}
    assert not cut.kept or size(cut.kept) <= 200


def test_reading_begins_at_the_cut_with_its_summary_first() -> None:
    memory = turns(8)
    cut = plan_cut(memory, POLICY, lambda cards: size(tuple(cards)))
    assert cut is not None
    marks = cut_cards(TURN, cut, POLICY, "They talked.", None)
    box = [*memory, *marks, card(OWN, 1, CardType.INSTRUCTION, "now")]
    summary = marks[1]
    assert remembered(box, OWN) == (summary, *cut.kept)
    later = AgentTurnId("later")
    assert remembered(box, later) == (summary, *cut.kept, box[-1])
    first = box.index(cut.kept[0])
    assert remembered(box[first:], later) == remembered(box, later)  # as the ledger reads it
    said = build_messages("", remembered(box, later), [card(later, 1, CardType.INSTRUCTION, "next")], ())
    assert said[0].content.startswith("(A summary of what was said before:)\nThey talked.")


def test_of_nothing_kept_only_what_follows_is_read() -> None:
    policy = Memory(keep="conversation", max_context_tokens=200, keep_last_turns=0)
    cut = plan_cut(turns(3), policy, lambda cards: size(tuple(cards)))
    assert cut is not None
    assert (cut.first_kept, cut.kept) == (None, ())
    box = [*turns(3), *cut_cards(TURN, cut, policy, None, "rate_limited"), card(OWN, 1, CardType.INSTRUCTION, "now")]
    assert remembered(box, AgentTurnId("later")) == (box[-1],)


def test_a_second_summary_is_asked_with_the_first() -> None:
    cut = plan_cut(turns(8), POLICY, lambda cards: size(tuple(cards)))
    assert cut is not None
    box = [*turns(8), *cut_cards(TURN, cut, POLICY, "They talked.", None), *turns(20)[16:]]
    again = plan_cut(remembered(box, AgentTurnId("later")), POLICY, lambda cards: size(tuple(cards)))
    assert again is not None
    assert "They talked." in question(again, POLICY)[1].content
