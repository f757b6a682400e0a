"""What a turn reads of its conversation, and what is cut off where that grows too large (protocol §7.3). Pure.

A cut is between turns: a turn's cards stay together, so no result is without its call. Tokens are estimated from the
text, a token for four characters. What is cut off stays in the box; a summary of it may take its place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from turnstile.activities.prompt.messages import build_messages
from turnstile.runtime.ports import ModelMessage
from turnstile.schema.cards import (
    SYSTEM_AUTHOR,
    Card,
    CardType,
    JsonContent,
    Role,
    TextContent,
    content_of,
    make_card,
)
from turnstile.schema.ids import AgentTurnId, CardId, step_card_id, step_id
from turnstile.schema.profiles import Memory
from turnstile.schema.turns import TurnRef

_CHARACTERS_PER_TOKEN: Final = 4
_TOKENS_PER_MESSAGE: Final = 4
_MARKS: Final = frozenset({CardType.CUT, CardType.SUMMARY})
SUMMARIZE: Final = (
    "Summarize the conversation below for the assistant that goes on with it: what the user wants, what was found, done"
    " and promised, names and numbers. Write the summary and nothing else."
)


@dataclass(frozen=True, slots=True)
class Cut:
    """What a compaction drops and keeps of a conversation, and the size that made it necessary, in estimated tokens."""

    dropped: tuple[Card, ...]
    kept: tuple[Card, ...]
    tokens: int

    @property
    def first_kept(self) -> CardId | None:
        """The first card that is still read; None if nothing is."""
        return self.kept[0].card_id if self.kept else None


def remembered(output: Sequence[Card], turn: AgentTurnId) -> tuple[Card, ...]:
    """The cards of earlier turns that are read: from the last cut on, its summary before them."""
    cut = max((place for place, card in enumerate(output) if card.type == CardType.CUT), default=None)
    earlier = [card for card in output if card.metadata.agent_turn_id != turn and card.type not in _MARKS]
    if cut is None:
        return tuple(earlier)
    maker = output[cut].metadata.agent_turn_id
    summary = [card for card in output if card.type == CardType.SUMMARY and card.metadata.agent_turn_id == maker]
    first = _first_kept(output[cut])
    places = {card.card_id: place for place, card in enumerate(output)}
    start = places.get(first, 0) if first is not None else cut
    return (*summary, *(card for card in earlier if places[card.card_id] >= start))


def estimate(messages: Sequence[ModelMessage]) -> int:
    """The tokens of the messages, estimated."""
    characters = sum(len(each.content) + sum(len(call.arguments) for call in each.tool_calls) for each in messages)
    return characters // _CHARACTERS_PER_TOKEN + _TOKENS_PER_MESSAGE * len(messages)


def plan_cut(memory: Sequence[Card], policy: Memory, size: Callable[[Sequence[Card]], int]) -> Cut | None:
    """What to cut off so that a request with this memory fits; None if it fits, or nothing is left to cut.

    Of the last `keep_last_turns` turns as many are kept as take half of `max_context_tokens`, with the rest of the
    request.
    """
    if policy.max_context_tokens is None or (tokens := size(memory)) <= policy.max_context_tokens:
        return None
    summary = [card for card in memory if card.type == CardType.SUMMARY]
    turns = _turns([card for card in memory if card.type != CardType.SUMMARY])
    if not turns:
        return None
    for number in range(min(policy.keep_last_turns, len(turns) - 1), -1, -1):
        dropped, kept = turns[: len(turns) - number], turns[len(turns) - number :]
        cards = tuple(card for turn in kept for card in turn)
        if number == 0 or size(cards) <= policy.max_context_tokens // 2:
            return Cut((*summary, *(card for turn in dropped for card in turn)), cards, tokens)
    return None


def question(cut: Cut, policy: Memory) -> tuple[ModelMessage, ...]:
    """What the summary's model is asked; of what is dropped no more than twice the policy's size."""
    said = build_messages("", cut.dropped, (), ())
    text = "\n\n".join(f"{each.role}: {each.content}" for each in said if each.content.strip())
    room = 2 * _CHARACTERS_PER_TOKEN * (policy.max_context_tokens or 0)
    if len(text) > room:  # its beginning, where an earlier summary is, and its end
        text = f"{text[: room // 4]}\n…\n{text[-3 * room // 4 :]}"
    return (ModelMessage(role="system", content=SUMMARIZE), ModelMessage(role="user", content=text))


def cut_cards(turn: TurnRef, cut: Cut, policy: Memory, summary: str | None, error: str | None) -> tuple[Card, ...]:
    """The card of the cut, and that of its summary if there is one; an `error` says why there is none."""
    said = {
        "first_kept_card_id": cut.first_kept,
        "dropped_cards": len(cut.dropped),
        "tokens": cut.tokens,
        "counted": "estimated",
        "policy": policy.when_full,
        "summary_error": error,
    }
    step = step_id(turn.agent_turn_id, 1)

    def card(name: str, kind: CardType, role: Role, content: JsonContent | TextContent) -> Card:
        return make_card(
            step_card_id(step, name),
            kind,
            role,
            content,
            author=SYSTEM_AUTHOR,
            turn=turn.agent_turn_id,
            step=step,
            trace=turn.trace_id,
        )

    made = [card("cut", CardType.CUT, Role.SYSTEM, JsonContent(data=said))]
    if summary is not None:
        text = summary[: _CHARACTERS_PER_TOKEN * (policy.max_context_tokens or 0) // 4]
        made.append(card("summary", CardType.SUMMARY, Role.USER, TextContent(text=text)))
    return tuple(made)


def _first_kept(cut: Card) -> CardId | None:
    content = content_of(cut)
    data = content.data if isinstance(content, JsonContent) else None
    first = data.get("first_kept_card_id") if isinstance(data, dict) else None
    return CardId(first) if isinstance(first, str) else None


def _turns(cards: Sequence[Card]) -> list[list[Card]]:
    """The cards turn by turn; a card of no turn belongs to the one before it."""
    turns: list[list[Card]] = []
    last: AgentTurnId | None = None
    for card in cards:
        turn = card.metadata.agent_turn_id
        if not turns or (turn is not None and turn != last):
            turns.append([])
            last = turn
        turns[-1].append(card)
    return turns
