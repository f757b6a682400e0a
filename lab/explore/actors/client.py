"""Clients: they enqueue, repeat themselves, and stop turns (protocol §6)."""

from lab.explore.actors.cast import CHANNEL, PROJECT, Cast, Script, gated, is_marked, of_turn, turn_ref
from lab.explore.net import TARGET
from lab.explore.world import Move, View
from turnstile.ledger.people.multitask import DisplacedTurn, Over, enqueue_over
from turnstile.ledger.people.steers import steer_turn
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import end_by_fallback
from turnstile.ledger.turns.intake import Enqueue, enqueue_turn, stop_queued_turn
from turnstile.ledger.turns.waiting import request_stop
from turnstile.rules.turn_ends import STOP_REASON, STOPPED, fallback_card
from turnstile.schema.access import Caller
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.cards import SYSTEM_AUTHOR, Card, CardType, Role, TextContent, make_card
from turnstile.schema.ids import ConversationId, InboxId, SteerId, turn_card_id
from turnstile.schema.people.steers import SteerRequest
from turnstile.schema.states import HeadStatus, MultitaskStrategy, SteerPriority, TurnStatus
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.ui_actions import UiAction

_ROOT = Caller("root", operates=True)


def enqueue_command(script: Script) -> Enqueue:
    """The request of this turn; a repeat has the same content and ids of its own, which are never used."""
    action = None
    request = EnqueueRequest(
        agent_id=script.agent,
        instruction=None if script.action else "hello",
        correlation_id=f"corr_{script.letter}",
        output_box_id=script.box_id("d") if script.box else None,
        conversation_id=ConversationId(script.talk) if script.talk else None,
        multitask_strategy=MultitaskStrategy(script.over or "enqueue"),
        budget=BudgetLimits(max_tokens=script.budget) if script.budget else None,
    )
    sent = {headers.TRACEPARENT: script.traceparent, **({headers.SENDER: script.by} if script.talk else {})}
    if script.action:
        action = UiAction(
            action_id=f"corr_{script.letter}", agent_id=script.agent, tool_name="search", args={"q": "it"}
        )
        request = EnqueueRequest(agent_id=script.agent, correlation_id=action.correlation_id)
    return Enqueue(
        project_id=PROJECT,
        channel_id=script.channel,
        request=request,
        context_headers=headers.context_headers(sent),
        depth_limit=20,
        sender="user.test",
        agent_turn_id=script.turn,
        inbox_id=script.inbox,
        new_context_box_id=script.box_id("c"),
        new_output_box_id=script.box_id("d"),
        action=action,
    )


async def enqueues(pool: Pool, script: Script) -> str:
    command = enqueue_command(script)
    if script.over:
        how = Over(Caller(script.by), script.over, _farewell, (STOPPED, STOP_REASON))
        way = await enqueue_over(pool, command, how)
        return f"{way.enqueued.reply.status.value}, {len(way.stopped)} make way"
    targets = [TARGET] if script.claimed else []
    enqueued = await pool.run(lambda conn: enqueue_turn(conn, command, targets))
    return enqueued.reply.status.value


def _farewell(stopped: DisplacedTurn) -> Card:
    """The deliverable of a queued turn that makes way."""
    turn = stopped.agent_turn_id
    content = TextContent(text="stopped")
    return make_card(
        turn_card_id(turn, "deliverable"),
        CardType.DELIVERABLE,
        Role.ASSISTANT,
        content,
        author=SYSTEM_AUTHOR,
        turn=turn,
    )


def stops(cast: Cast, script: Script, view: View) -> list[Move]:
    """Whoever asks for a stop may have found the turn queued, or leased, a while ago. In a tree a mark comes first."""
    if script.letter not in cast.stops or (cast.forks and not is_marked(script, view)):
        return []

    async def ask(pool: Pool) -> str:
        row = InboxId(f"stop_{script.turn}")
        return (await pool.run(lambda conn: request_stop(conn, PROJECT, script.turn, "enough", row))).verdict

    async def stop_queued(pool: Pool) -> str:
        card = fallback_card(_unleased(script), (), TurnStatus.CANCELED, STOP_REASON)
        stopped = await pool.run(lambda conn: stop_queued_turn(conn, PROJECT, script.agent, script.turn, card, STOPPED))
        return "not queued" if stopped is None else "stopped"

    moves = [Move(f"stop {script.letter}", ask), Move(f"stop-queued {script.letter}", stop_queued)]
    row = view.find("agent_inbox", inbox_id=script.inbox)
    if row is not None and row["turn_epoch"]:
        turn = turn_ref(script, row)

        async def stop_leased(pool: Pool) -> str:
            leased = (HeadStatus.DISPATCHED,)
            return (await end_by_fallback(pool, turn, TurnStatus.CANCELED, STOPPED, STOP_REASON, leased)).result

        moves.append(Move(f"stop-leased {script.letter}", gated(stop_leased)))
    return [of_turn(script, move) for move in moves]


def steers(cast: Cast, script: Script) -> list[Move]:
    """Each steer is said at any time, and again: whoever does not hear the answer repeats it."""
    priorities = [priority for letter, priority in cast.steers if letter == script.letter]

    def saying(number: int, priority: SteerPriority) -> Move:
        steer = SteerId(f"steer_{script.letter}{number}")
        request = SteerRequest(agent_turn_id=script.turn, text="go on", priority=priority, correlation_id=steer)

        async def say(pool: Pool) -> str:
            return (await pool.run(lambda conn: steer_turn(conn, PROJECT, CHANNEL, request, _ROOT, steer))).verdict

        return of_turn(script, Move(f"steer {script.letter}{number}", gated(say)))

    return [saying(number, priority) for number, priority in enumerate(priorities, 1)]


def _unleased(script: Script) -> TurnRef:
    return turn_ref(script, {"turn_epoch": 0, "payload": {"profile_box_id": ""}})
