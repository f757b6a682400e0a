"""Workers: any number of them, each of which may come late with any step that it has begun (protocol §7)."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from lab.explore.actors.cast import (
    CHANNEL,
    MOMENT,
    PROJECT,
    WAIT_SECONDS,
    Calls,
    Cast,
    Cuts,
    Ended,
    Ends,
    Goes,
    Script,
    Step,
    gated,
    is_marked,
)
from lab.explore.actors.spending import reservations, used
from lab.explore.world import Move, View
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import BoxCache, box_cards
from turnstile.ledger.turns.ends import end_by_fallback, finish_turn, mark_announced
from turnstile.ledger.turns.steps import begin_step, commit_step
from turnstile.rules.memory import cut_card
from turnstile.rules.turn_ends import STOP_REASON, STOPPED, Ending, fallback_ending
from turnstile.rules.turn_step import MadeBox, StepRecord
from turnstile.schema.budgets.uses import StepBudget
from turnstile.schema.cards import (
    Card,
    CardType,
    JsonContent,
    MemoryCut,
    Role,
    TextContent,
    ToolCallContent,
    make_card,
)
from turnstile.schema.errors import SteerWaits
from turnstile.schema.ids import (
    CardId,
    step_card_id,
    step_id,
    turn_card_id,
)
from turnstile.schema.people.interrupts import Decision, Hold, InterruptReason
from turnstile.schema.states import AfterExecution, StepStatus, TurnStatus
from turnstile.schema.step_metadata import Compaction, ContinueMetadata, EndMetadata, SuspendMetadata
from turnstile.schema.tools import ToolCommand
from turnstile.schema.turns import TurnRef


def steps(cast: Cast, script: Script, turn: TurnRef, view: View) -> list[Move]:
    """Every step that an attempt may begin, and every one that an attempt has begun and may still commit."""
    recorded = len(view.all("agent_steps", agent_turn_id=script.turn))
    head = view.find("agent_state_head", active_agent_turn_id=script.turn)
    over = view.find("turn_outcomes", agent_turn_id=script.turn)
    begun = recorded
    if (head is not None and head["step_attempt"]) or (over is not None and over["started_at"]):
        begun += 1
    stopping = _is_stopping(script, view)
    moves: list[Move] = []
    for number, choices in enumerate(script.steps, 1):
        name = f"{script.letter} {number}"
        if number <= recorded + 1:
            moves.append(Move(f"begin {name}", gated(lambda pool, n=number: begin(pool, turn, n))))
        if number <= begun:
            for label, use in (("", None), *used(script, number, view)):
                may = [choice for choice in choices if _may_be(script, choice, view)]
                moves += [_move(script, turn, number, step, view, label, use) for step in may]
            moves += reservations(script, turn, number)
            ends = Ends() in choices and _may_be(script, Ends(), view)
            if ends and number < len(script.steps) and _may_be_steered(turn, number, view):
                moves.append(Move(f"steered {name}", gated(_going_on(turn, number, view, steered=True))))
            # an action has one step: later it is ended without; a child ends as one does whose step was refused
            if stopping and (number == 1 or not script.action) and script.letter not in cast.children:
                moves.append(Move(f"cancel {name}", gated(lambda pool, n=number: _cancel(pool, turn, n))))
    if stopping:

        async def end_stopped(pool: Pool) -> str:
            return (await end_by_fallback(pool, turn, TurnStatus.CANCELED, STOPPED, STOP_REASON)).result

        moves.append(Move(f"end-stopped {script.letter}", gated(end_stopped)))
    if over is not None and cast.announces:

        async def announce(pool: Pool) -> str:
            await pool.run(lambda conn: mark_announced(conn, [script.turn]))
            return "announced"

        moves.append(Move(f"announce {script.letter}", announce))
    return moves


def _is_stopping(script: Script, view: View) -> bool:
    """Whether whoever works on the turn may hear that it is to end: by a stop of its own, or since it is marked."""
    return is_marked(script, view) or view.find("agent_inbox", inbox_id=f"stop_{script.turn}") is not None


def _may_be(script: Script, choice: Step, view: View) -> bool:
    """Whether an attempt can come to this: a result that ends the turn leaves nothing else, and nothing else does."""
    ending = [script.call(number, name) for number, name, ends in script.calls() if ends]
    if not ending or isinstance(choice, Calls):
        return True
    ended = any(
        row["tool_call_id"] in ending and row["wait_status"] == "applied" for row in view.table("turn_waiting_tools")
    )
    return ended == isinstance(choice, Ended)


def _move(
    script: Script, turn: TurnRef, number: int, choice: Step, view: View, move: str = "", use: StepBudget | None = None
) -> Move:
    name = f"{script.letter} {number}{f' {move}' if move else ''}"
    match choice:
        case Calls(names):
            move, steered = f"call {name} {','.join(names)}", _asked_with(turn, number, view)
            return Move(move, gated(lambda pool: call(pool, script, turn, number, names, steered)))
        case Goes():
            return Move(f"go-on {name}", gated(_going_on(turn, number, view, use=use)))
        case Cuts():
            return Move(f"cut {name}", gated(_cutting(script, turn, number, view)))
        case Ends():
            steered = _asked_with(turn, number, view)
            return Move(f"finish {name}", gated(lambda pool: _finish(pool, script, turn, number, steered, use)))
        case Ended():
            ending = _ended_by(script, turn, view)
            return Move(f"terminate {name}", gated(lambda pool: _terminate(pool, turn, ending)))


async def begin(pool: Pool, turn: TurnRef, number: int) -> str:
    """Begin a step."""
    begun = await pool.run(lambda conn: begin_step(conn, turn, number, BoxCache(0)))
    return f"begun {begun.head.message_type}"


def _thought(turn: TurnRef, number: int) -> Card:
    step = step_id(turn.agent_turn_id, number)
    return make_card(
        step_card_id(step, "thought"),
        CardType.THOUGHT,
        Role.ASSISTANT,
        TextContent(text="so be it"),
        author=turn.agent_id,
        turn=turn.agent_turn_id,
        step=step,
        trace=turn.trace_id,
    )


_HOLD = Hold(
    reason=InterruptReason.TOOL_CALL,
    message="May it?",
    action_digest="d",
    allowed_decisions=(Decision.APPROVE, Decision.REJECT),
    expires_after_seconds=WAIT_SECONDS,
)


async def call(
    pool: Pool, script: Script, turn: TurnRef, number: int, names: Sequence[str], steered: Sequence[Card] = ()
) -> str:
    """Commit a step that sends these calls."""
    calls = [script.call(number, name) for name in names]
    sent = [
        ToolCommand(
            tool_call_id=c,
            tool_name="search",
            tool_call_card_id=CardId(f"{c}-call"),
            after_execution=AfterExecution.SUSPEND,
            subject=f"cg.v1r4.{PROJECT}.{CHANNEL}.cmd.tool.search.run",
        )
        for c in calls
    ]
    cards = [
        make_card(
            CardId(command.tool_call_card_id),
            CardType.TOOL_CALL,
            Role.ASSISTANT,
            ToolCallContent(tool_name="search", arguments={"q": "it"}, target_subject=command.subject),
            author=turn.agent_id,
            turn=turn.agent_turn_id,
            step=step_id(turn.agent_turn_id, number),
            trace=turn.trace_id,
            tool_call=command.tool_call_id,
        )
        for command in sent
    ]
    thoughts = [] if script.action else [_thought(turn, number)]
    ids = _ids(steered)
    holds = [_HOLD if c in {*script.held()} else None for c in calls]
    held = tuple(c for c, hold in zip(calls, holds, strict=True) if hold)
    metadata = SuspendMetadata(commands=tuple(sent), new_card_ids=ids, held=held)
    all_cards = [*steered, *thoughts, *cards]
    record = StepRecord(
        number, metadata, all_cards, calls, MOMENT, wait_seconds=WAIT_SECONDS, kept=ids, steers=ids, holds=holds
    )
    return (await pool.run(lambda conn: commit_step(conn, turn, record))).result


def _asked_with(turn: TurnRef, number: int, view: View) -> tuple[Card, ...]:
    """The steers that this step takes: every attempt of it knows them from its begin, and there is no other begin."""
    rows = view.all("steers", agent_turn_id=turn.agent_turn_id, step_id=step_id(turn.agent_turn_id, number))
    content = TextContent(text="go on")
    return tuple(
        make_card(CardId(row["steer_id"]), CardType.STEER, Role.USER, content, author="root", turn=turn.agent_turn_id)
        for row in sorted(rows, key=lambda row: row["seq"])
    )


def _ids(cards: Sequence[Card]) -> tuple[CardId, ...]:
    return tuple(card.card_id for card in cards)


def _may_be_steered(turn: TurnRef, number: int, view: View) -> bool:
    """Whether an attempt of this step may have learned that a steer waits: there is one that none before took."""
    rows = view.all("steers", agent_turn_id=turn.agent_turn_id)
    until = {step_id(turn.agent_turn_id, n) for n in range(1, number + 1)}
    return any(row["step_id"] not in until for row in rows)


def _going_on(
    turn: TurnRef, number: int, view: View, *, steered: bool = False, use: StepBudget | None = None
) -> Callable[[Pool], Coroutine[Any, Any, str]]:
    steered_cards = _asked_with(turn, number, view)
    cards, metadata = (
        [*steered_cards, _thought(turn, number)],
        ContinueMetadata(new_card_ids=_ids(steered_cards), budget=use),
    )
    record = StepRecord(
        number, metadata, cards, [], MOMENT, kept=_ids(steered_cards), steers=_ids(steered_cards), steered=steered
    )

    async def go_on(pool: Pool) -> str:
        return (await pool.run(lambda conn: commit_step(conn, turn, record))).result

    return go_on


def _deliverable(turn: TurnRef) -> Card:
    return make_card(
        turn_card_id(turn.agent_turn_id, "deliverable"),
        CardType.DELIVERABLE,
        Role.ASSISTANT,
        JsonContent(data={"text": "done"}),
        author=turn.agent_id,
        turn=turn.agent_turn_id,
        trace=turn.trace_id,
    )


def _remembered(turn: TurnRef) -> Card:
    """The instruction of the context box: the first step of a turn that remembers takes it into the output box."""
    card = turn_card_id(turn.agent_turn_id, "instruction")
    content = TextContent(text="hello")
    return make_card(card, CardType.INSTRUCTION, Role.USER, content, author="user.test", turn=turn.agent_turn_id)


def _cutting(script: Script, turn: TurnRef, number: int, view: View) -> Callable[[Pool], Coroutine[Any, Any, str]]:
    """A step that compacts the memory: the turn and its conversation go on in a box without what was there (§7.3)."""
    instruction, box = _remembered(turn), script.box_id("e")
    compaction = Compaction(
        reason="full",
        when_full="drop",
        tokens_before=2,
        tokens_after=1,
        counted="exact",
        turns_cut=1,
        turns_kept=0,
        output_box_id=box,
    )
    metadata = ContinueMetadata(
        compaction=compaction, output_position=len(view.all("box_cards", box_id=turn.output_box_id))
    )
    cards = [instruction, cut_card(turn, number, MemoryCut(first_card_id=instruction.card_id))]
    box_made, kept = MadeBox(box, instruction.card_id), [instruction.card_id]
    record = StepRecord(number, metadata, cards, [], MOMENT, kept=kept, made_box=box_made)

    async def cut(pool: Pool) -> str:
        return (await pool.run(lambda conn: commit_step(conn, turn, record))).result

    return cut


async def _finish(
    pool: Pool, script: Script, turn: TurnRef, number: int, steered: Sequence[Card], use: StepBudget | None = None
) -> str:
    """The step ends the turn, unless a steer waits for another one, which the last step of a script has not."""
    card = _deliverable(turn)
    instruction = [_remembered(turn)] if script.talk and number == 1 else []
    cards = [*instruction, *steered, _thought(turn, number), card]
    kept = [c.card_id for c in (*instruction, *steered)]
    metadata = EndMetadata(new_card_ids=_ids(steered), budget=use)
    record = StepRecord(number, metadata, cards, [], MOMENT, kept=kept, steers=_ids(steered))
    ending = Ending(TurnStatus.SUCCESS, card.card_id)
    yields = number < len(script.steps)
    try:
        return (await pool.run(lambda conn: finish_turn(conn, turn, ending, record=record, yields=yields))).result
    except SteerWaits:
        return "steered"


def _ended_by(script: Script, turn: TurnRef, view: View) -> Ending:
    """The end by the result of a call: of one that ends the turn, or of a UI action's only one."""
    ends = {script.call(number, name) for number, name, ends in script.calls() if ends or script.action}
    rows = view.all("turn_waiting_tools", agent_turn_id=script.turn)
    card = next((row["tool_result_card_id"] for row in rows if row["tool_call_id"] in ends), None)
    timed_out = any(row["tool_call_id"] in ends and row["wait_status"] == "expired" for row in rows)
    status = TurnStatus.TIMEOUT if timed_out else TurnStatus.SUCCESS
    return Ending(status, _deliverable(turn).card_id, tool_result_card_id=card)


async def _terminate(pool: Pool, turn: TurnRef, ending: Ending) -> str:
    return (await pool.run(lambda conn: finish_turn(conn, turn, ending, cards=[_deliverable(turn)]))).result


async def _cancel(pool: Pool, turn: TurnRef, number: int) -> str:
    """A step that was stopped: it ends the turn itself (§6, stop)."""
    cards = await pool.run(lambda conn: box_cards(conn, PROJECT, turn.output_box_id))
    card, ending = fallback_ending(turn, cards or (), TurnStatus.CANCELED, STOPPED, STOP_REASON)
    record = StepRecord(number, EndMetadata(), [card], [], MOMENT, StepStatus.CANCELED)
    finished = await pool.run(lambda conn: finish_turn(conn, turn, ending, record=record, raise_epoch=True))
    return finished.result
