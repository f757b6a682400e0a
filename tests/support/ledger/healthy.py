"""A small valid ledger with a turn in every state, for tests that break it.

Alice has a running turn and a queued one. Three of her turns have ended: a plain one, one with an answered and a timed-
out call, and one that was stopped in the queue. Bob's turn sleeps with one pending and one reported call; an earlier
one was stopped while it slept. Carol is idle after a child of Alice's turn, ended by a tool's result. Dave's turn is
leased and claimed, and an earlier one failed. Eve has no turns. Frank is idle after a UI action. Grace is idle after
the first turn of a conversation, and Hank after four, the last two of which have compacted it. Heidi is paused with a
queued turn. Ivan's turn sleeps with two forks: one is decided, and of the other one child is over and one is leased.
Judy's turn sleeps while its tool has asked another agent, which has answered. Kim's turn was steered: it runs, and one
steer is taken and one waits; of three of an earlier turn two are applied in one step, and one was skipped. Leo's turn
waits for people: of four calls one is held, one approved, one rejected and one edited. Mallory's second turn has taken
the place of the first, which is rolled back and over, and the third that of the second, which is in hand and asked to
stop. Nina's turn waits for somebody who knows whether a call was done. Kate has run a turn again from its second step.
Oscar's turn sleeps and has a budget, of the project's for this day, and so have two children of it: one has spent some
and is over, the other has asked a model and has not said what it used. A box was made of the cards of Alice's plain
turn. A receiver of that turn was told its end, and one waits for that of the running one.
"""

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    CHANNEL,
    PROJECT,
    STARTED,
    TARGET,
    act,
    add_agents,
    announce,
    ask,
    begin,
    card,
    commit,
    finish,
    lease,
    play,
    rows,
    start,
    stop,
    value,
)
from tests.support.ledger.budgets import end as end_spender
from tests.support.ledger.budgets import limit, price, reserve, uses
from tests.support.ledger.calls import ask_to_stop, end, expire, settle, sleeper, suspend, tell, told
from tests.support.ledger.compactions import compact
from tests.support.ledger.multitask import again, plain
from tests.support.ledger.people import RESPOND, answer, asking, decide, edit, responds
from tests.support.ledger.people import asks as asks_person
from tests.support.ledger.reruns import again as run_again
from tests.support.ledger.steers import finish_asked, say
from tests.support.ledger.trees import asks, child, forks, in_hand, parent, succeed
from tests.support.ledger.unknown_calls import doubtful
from turnstile.ledger.budgets.steering import More, raise_budget
from turnstile.ledger.operations.sweep import touch_worker
from turnstile.ledger.pool import Pool
from turnstile.ledger.pushes.receivers import claim_pushes, record_push, set_receiver
from turnstile.ledger.roster import LOCAL, set_agent_status
from turnstile.ledger.turns.boxes import compose_box
from turnstile.ledger.turns.call_steps import step_of_call
from turnstile.ledger.turns.ends import finish_turn
from turnstile.rules.turn_ends import Ending
from turnstile.rules.turn_step import StepRecord
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.cards import CardType
from turnstile.schema.ids import AgentId, AgentTurnId, CardId, ReceiverId, ToolCallId, made_box_id, new_box_id
from turnstile.schema.people.approvals import Decision
from turnstile.schema.states import StepStatus, TurnStatus
from turnstile.schema.step_metadata import EndMetadata
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers
from turnstile.schema.wire.box_requests import BoxMakeRequest
from turnstile.schema.wire.call_requests import StepOutcome, StepUse
from turnstile.schema.wire.limits import Maker

DAVE, EVE, FRANK, GRACE, HANK = (AgentId(name) for name in ("dave", "eve", "frank", "grace", "hank"))
HEIDI, IVAN, JUDY, KATE = (AgentId(name) for name in ("heidi", "ivan", "judy", "kate"))
KIM, LEO, MALLORY, NINA, OSCAR = (AgentId(name) for name in ("kim", "leo", "mallory", "nina", "oscar"))


async def make_healthy(pool: Pool) -> dict[str, str]:
    """Build it; returns the turns by name, and their boxes and rows as `{name}_box`, `{name}_context`, `{name}_row`."""
    await add_agents(
        pool, ALICE, BOB, CAROL, DAVE, EVE, FRANK, GRACE, HANK, HEIDI, IVAN, JUDY, KATE, KIM, LEO, MALLORY, NINA, OSCAR
    )
    await pool.run(lambda conn: touch_worker(conn, "worker-1", [TARGET]))
    await ask(pool, ALICE)
    turns = {"plain": await play(pool, ALICE), "called": await _called(pool)}
    turns["stopped"] = await sleeper(pool, "dropped", agent=BOB)
    await ask_to_stop(pool, turns["stopped"].agent_turn_id)
    await end(pool, turns["stopped"])
    turns["child"] = await _child(pool, turns["called"])
    turns["failed"] = await _failed(pool)
    turns["acted"] = await _acted(pool)
    await ask(pool, GRACE, conversation_id="c1")
    turns["talked"] = await play(pool, GRACE)
    turns |= await _cut(pool)
    turns |= await _forked(pool)
    turns["asking"] = await _asking(pool)
    turns["doubtful"] = await doubtful(pool, "unknown", agent=NINA)
    turns |= await _displaced(pool)
    steered = await _steered(pool, turns)
    turns["once"] = await _called(pool, KATE, "once", "twice")
    await run_again(pool, turns["once"], from_step=2)
    turns["again"] = await play(pool, KATE)
    turns["asleep"] = await sleeper(pool, "waits", "told", agent=BOB)
    await told(pool, "told")
    turns["running"] = await lease(pool, ALICE)
    await begin(pool, turns["running"])
    await commit(pool, turns["running"])
    given_up, waiting = await ask(pool, ALICE), await ask(pool, ALICE)
    await stop(pool, ALICE, given_up)
    turns["leased"] = await lease(pool, DAVE)
    turns |= await _spending(pool)
    ended = await rows(pool, "SELECT agent_turn_id FROM state.turn_outcomes")
    await announce(pool, [AgentTurnId(row["agent_turn_id"]) for row in ended])
    names = {"given_up": str(given_up.reply.agent_turn_id), "queued": str(waiting.reply.agent_turn_id)}
    for name, turn in turns.items():
        names |= {name: turn.agent_turn_id, f"{name}_row": turn.inbox_id}
        names |= {f"{name}_box": turn.output_box_id, f"{name}_context": turn.context_box_id}
    names |= steered
    names["day"] = await value(pool, "SELECT budget_id FROM state.budgets WHERE kind = 'day'")
    await set_agent_status(pool, PROJECT, HEIDI, "pause", LOCAL)
    await ask(pool, HEIDI)
    for turn in (turns["plain"], turns["running"]):
        await receiver_of(pool, turn)
    made = made_box_id(PROJECT, "made")
    parts = [{"text": "before"}, {"box_id": turns["plain"].output_box_id}]
    wanted = BoxMakeRequest.model_validate({"parts": parts})
    await pool.run(lambda conn: compose_box(conn, PROJECT, CHANNEL, wanted, made, "user.test"))
    return {**names, "made": new_box_id(), "made_box": made}


async def receiver_of(pool: Pool, turn: TurnRef) -> None:
    """A receiver of a turn, who is told where it stands."""
    named = (PROJECT, CHANNEL, turn.agent_turn_id, ReceiverId("one"))
    await pool.run(lambda conn: set_receiver(conn, *named, url="https://x/", token="secret", maker=Maker("me")))
    for push in await pool.run(lambda conn: claim_pushes(conn, busy=[], share=9, hold_seconds=60, row_limit=9)):
        await pool.run(lambda conn, push=push: record_push(conn, push))


async def _cut(pool: Pool) -> dict[str, TurnRef]:
    """Four turns of a conversation; the third keeps the second, the fourth the third."""
    names = ("gone", "dropped_later", "cut", "cut_again")
    turns: dict[str, TurnRef] = {}
    for name in names:
        turns[name] = await lease(pool, HANK, conversation_id="c2")
        begun = await begin(pool, turns[name])
        if name in names[2:]:
            kept = turns[names[names.index(name) - 1]]
            first = CardId(f"{kept.agent_turn_id}-s1-thought")
            await compact(pool, turns[name], first, cards=[card(turns[name], 1, "thought")], begun=begun)
            await begin(pool, turns[name], 2)
        await finish(pool, turns[name], 2 if name in names[2:] else 1)
    return turns


async def _forked(pool: Pool) -> dict[str, TurnRef]:
    """A turn with a decided batch and with one that runs, and one whose tool has a batch of its own."""
    turns = {"forking": await sleeper(pool, "decided", "forked", agent=IVAN)}
    [only] = (await forks(pool, "decided", 1)).tasks
    turns["decider"] = await succeed(pool, only.agent_turn_id)
    first, second = (await forks(pool, "forked", 2)).tasks
    turns["settled"] = await succeed(pool, first.agent_turn_id)
    turns["awaited"] = await in_hand(pool, second.agent_turn_id)
    turns["asker"] = await sleeper(pool, "asking", agent=JUDY)
    [asked] = (await asks(pool, "asking")).tasks
    await succeed(pool, asked.agent_turn_id)
    return turns


async def _spending(pool: Pool) -> dict[str, TurnRef]:
    """A turn that has a budget, and two children that have theirs of it: one is over, one has an open reservation."""
    await price(pool)
    await limit(pool, max_tokens=10_000, max_turns=10)
    turns = {"holder": await sleeper(pool, "shared", agent=OSCAR, budget={"max_tokens": 2000, "max_cost_usd": 0.05})}
    for key in ("plan", "write"):
        use = StepUse(model="m", tokens=10, cost=0.00001)
        outcome = StepOutcome(value=key, usage=use)
        await pool.run(lambda conn, k=key, o=outcome: step_of_call(conn, PROJECT, ToolCallId("shared"), k, o))
    holder = BudgetId(turns["holder"].agent_turn_id)
    await pool.run(lambda conn: raise_budget(conn, PROJECT, holder, More(tokens=100), "user.test", "raise"))
    call = await parent(pool, "shared")
    tasks = [child(call, 0, budget={"max_tokens": 500, "max_turns": 2}), child(call, 1, budget={"max_tokens": 500})]
    spent, spending = (await forks(pool, "shared", tasks=tasks)).tasks
    turns["spent"] = await in_hand(pool, spent.agent_turn_id)
    turns["spending"] = await in_hand(pool, spending.agent_turn_id)
    for name in ("spent", "spending"):
        await begin(pool, turns[name])
        await reserve(pool, turns[name])
        await reserve(pool, turns[name], attempt=2)
    await end_spender(pool, turns["spent"], uses((1, 200, 20), (2, 0, 0)))
    return turns


async def _asking(pool: Pool) -> TurnRef:
    """A turn that waits for people about a call, was told about three others, and whose tool asks under a fifth."""
    turn = await asking(
        pool, "held", "approved", "rejected", "edited", free=("curious",), agent=LEO, client="clients", requester="zoe"
    )
    for key in ("answered", "open"):
        assert await asks_person(pool, "curious", key) == "accepted"
    assert await responds(pool, "curious", "answered") == "accepted"
    await decide(pool, "clients", RESPOND, who="zoe")
    await decide(pool, "approved")
    await decide(pool, "rejected", answer(Decision.REJECT))
    await decide(pool, "edited", answer(Decision.EDIT, edit=edit(turn, "edited", {"q": "mild"})))
    return turn


async def _displaced(pool: Pool) -> dict[str, TurnRef]:
    """A turn that was rolled back, and one that is asked to make way for a third."""
    await plain(pool, agent=MALLORY, conversation="c3")
    turns = {"rolled_back": await start(pool, MALLORY)}
    await begin(pool, turns["rolled_back"])
    await again(pool, "rollback", agent=MALLORY, conversation="c3")
    await end(pool, turns["rolled_back"])
    turns["displaced"] = await start(pool, MALLORY)
    await begin(pool, turns["displaced"])
    await again(pool, "interrupt", agent=MALLORY, conversation="c3")
    return turns


async def _steered(pool: Pool, turns: dict[str, TurnRef]) -> dict[str, str]:
    """A turn with steers that are applied and skipped, and one that runs; returns the steers by name."""
    turns["heard"] = turn = await lease(pool, KIM)
    first, second = await say(pool, turn, "first"), await say(pool, turn, "second")
    begun = await begin(pool, turn)
    skipped = await say(pool, turn, "too late", priority="when_idle")
    await finish_asked(pool, turn, begun, yields=False)
    turns["steered"] = turn = await lease(pool, KIM)
    taken = await say(pool, turn, "taken")
    await begin(pool, turn)
    waiting = await say(pool, turn, "waiting")
    return {"first": first, "second": second, "skipped": skipped, "taken": taken, "waiting": waiting}


async def _called(pool: Pool, agent: AgentId = ALICE, answered: str = "answered", late: str = "late") -> TurnRef:
    """A turn with two calls, of which one was answered."""
    turn = await sleeper(pool, answered, late, agent=agent, wait_seconds=0)
    reported = await told(pool, answered)
    rings = await expire(pool, turn)
    await settle(pool, turn, reported, *(ring.inbox_id for ring in rings))
    await begin(pool, turn, 2)
    await finish(pool, turn, 2)
    return turn


async def _child(pool: Pool, parent: TurnRef) -> TurnRef:
    """A turn that another turn enqueued, ended by the result of its call."""
    lineage = {headers.PARENT_TURN_ID: parent.agent_turn_id, headers.PARENT_AGENT_ID: parent.agent_id}
    turn = await sleeper(pool, "ends", agent=CAROL, incoming=lineage)
    reported = await tell(pool, "ends")
    assert reported.reply.inbox_id is not None
    await settle(pool, turn, reported.reply.inbox_id)
    await begin(pool, turn, 2)
    made = card(turn, 2, "deliverable", CardType.DELIVERABLE)
    how = Ending(TurnStatus.SUCCESS, made.card_id, tool_result_card_id=CardId("ends-result"))
    await pool.run(lambda conn: finish_turn(conn, turn, how, cards=[made]))
    return turn


async def _acted(pool: Pool) -> TurnRef:
    """A UI action whose call was answered."""
    await act(pool, FRANK)
    turn = await start(pool, FRANK)
    await begin(pool, turn)
    await suspend(pool, turn, "pressed")
    reported = await told(pool, "pressed")
    await settle(pool, turn, reported)
    await begin(pool, turn, 2)
    made = card(turn, 1, "deliverable", CardType.DELIVERABLE)
    how = Ending(TurnStatus.SUCCESS, made.card_id, tool_result_card_id=CardId("pressed-result"))
    await pool.run(lambda conn: finish_turn(conn, turn, how, cards=[made]))
    return turn


async def _failed(pool: Pool) -> TurnRef:
    """A turn whose model failed in its first step."""
    turn = await lease(pool, DAVE)
    await begin(pool, turn)
    made = card(turn, 1, "deliverable", CardType.DELIVERABLE)
    record = StepRecord(1, EndMetadata(error_code="x"), [made], [], STARTED, status=StepStatus.FAILED)
    how = Ending(TurnStatus.FAILED, made.card_id, "x")
    await pool.run(lambda conn: finish_turn(conn, turn, how, record=record))
    return turn
