"""Steps that compact the memory of their turn (protocol §7.3)."""

from collections.abc import Sequence

from tests.support.ledger.agents import STARTED, begin
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.steps import commit_step
from turnstile.rules.memory import cut_card
from turnstile.rules.turn_step import BegunStep, MadeBox, StepRecord
from turnstile.schema.cards import Card, MemoryCut
from turnstile.schema.ids import CardId, new_box_id
from turnstile.schema.step_metadata import Compaction, ContinueMetadata
from turnstile.schema.turns import TurnRef


def cut_record(
    turn: TurnRef, step: int, first: CardId, read: int, cards: Sequence[Card] = (), carried: Sequence[CardId] = ()
) -> StepRecord:
    """A step that keeps of its memory what is there from `first` on, and makes these cards, too."""
    box = new_box_id()
    told = Compaction(
        reason="full",
        when_full="drop",
        tokens_before=2,
        tokens_after=1,
        counted="exact",
        turns_cut=1,
        turns_kept=1,
        output_box_id=box,
    )
    cut = cut_card(turn, step, MemoryCut(first_card_id=first))
    metadata = ContinueMetadata(compaction=told, output_position=read)
    return StepRecord(step, metadata, [*cards, cut], [], STARTED, made_box=MadeBox(box, first, carried))


async def compact(
    pool: Pool,
    turn: TurnRef,
    first: CardId,
    step: int = 1,
    cards: Sequence[Card] = (),
    carried: Sequence[CardId] = (),
    begun: BegunStep | None = None,
) -> TurnRef:
    """Begin a step, which compacts; returns the turn in the box in which it goes on."""
    begun = await begin(pool, turn, step) if begun is None else begun
    record = cut_record(turn, step, first, begun.head.output_position, cards, carried)
    done = await pool.run(lambda conn: commit_step(conn, turn, record))
    return turn.model_copy(update={"output_box_id": done.step_metadata.box_after})
