"""Short functions that build a test's state by the ledger's own functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from turnstile.ledger.operations.sweep import list_stranded, release_stale_claims
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.ends import finish_turn, mark_announced
from turnstile.ledger.turns.intake import (
    Enqueue,
    Enqueued,
    QueuedStop,
    enqueue,
    enqueue_turn,
    stop_queued_turn,
)
from turnstile.ledger.turns.lease import AgentKey, Claim, LiveTurn, claim_inbox, dispatch_next
from turnstile.ledger.turns.steps import CommittedStep, begin_step, commit_step
from turnstile.ledger.turns.views import locate_turn
from turnstile.ledger.turns.waiting import apply_reports, inject_timeouts
from turnstile.rules.turn_ends import Ending, FinishedTurn, Lease, NewLease
from turnstile.rules.turn_step import BegunStep, StepRecord
from turnstile.schema.access import Caller
from turnstile.schema.cards import Card, CardType, Role, TextContent, make_card
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    CardId,
    ChannelId,
    InboxId,
    ProjectId,
    new_box_id,
    step_card_id,
    step_id,
    turn_card_id,
    uuid7,
)
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import ContinueMetadata, EndMetadata
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.ui_actions import UiAction

PROJECT = ProjectId("p1")
CHANNEL = ChannelId("public")
TARGET = "worker_generic"
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
ALICE, BOB, CAROL = AgentId("alice"), AgentId("bob"), AgentId("carol")


def profile(name: str = "helper", **more: Any) -> Profile:
    """A profile with a scripted model."""
    return Profile(name=name, llm_config=LlmConfig(model="scripted/echo"), **more)


async def add_agents(
    pool: Pool, *agents: AgentId, project: ProjectId = PROJECT, worker_target: str | None = None
) -> None:
    """The profile `helper`, and agents that have it."""
    await put_profile(pool, PROJECT, profile())
    for agent in agents:
        await add_agent(pool, PROJECT, agent, "helper", worker_target=worker_target)


async def ask(
    pool: Pool,
    agent: AgentId = ALICE,
    instruction: str | None = "hello",
    *,
    incoming: dict[str, str] | None = None,
    project: ProjectId = PROJECT,
    depth_limit: int = 20,
    **fields: Any,
) -> Enqueued:
    """Enqueue a turn; `fields` are further arguments of the request."""
    request = EnqueueRequest.model_validate({"agent_id": agent, "instruction": instruction, **fields})
    how: dict[str, Any] = {"depth_limit": depth_limit, "sender": "user.test", "caller": Caller("root", operates=True)}
    return await enqueue(pool, project, CHANNEL, request, incoming or {}, **how)


def command(
    agent: AgentId = ALICE,
    instruction: str | None = "hello",
    *,
    incoming: dict[str, str] | None = None,
    depth_limit: int = 20,
    **fields: Any,
) -> Enqueue:
    """An enqueue with its ids; `send` may execute it several times."""
    return Enqueue(
        project_id=PROJECT,
        channel_id=CHANNEL,
        request=EnqueueRequest.model_validate({"agent_id": agent, "instruction": instruction, **fields}),
        context_headers=headers.context_headers(incoming or {}),
        depth_limit=depth_limit,
        sender="user.test",
        agent_turn_id=AgentTurnId(uuid7()),
        inbox_id=InboxId(uuid7()),
        new_context_box_id=new_box_id(),
        new_output_box_id=new_box_id(),
    )


async def act(pool: Pool, agent: AgentId = ALICE, *, action_id: str = "a-1", **fields: Any) -> Enqueued:
    """Enqueue a UI action of `search`; `fields` are more of it."""
    given: dict[str, Any] = {"action_id": action_id, "agent_id": agent, "tool_name": "search", "args": {"q": "it"}}
    action = UiAction.model_validate(given | fields)
    return await enqueue(pool, PROJECT, CHANNEL, action, {}, depth_limit=20, sender="user.test")


async def send(conn: Connection, sent: Enqueue, *claimed_targets: str) -> Enqueued:
    """Execute the enqueue once, on this connection."""
    return await enqueue_turn(conn, sent, claimed_targets)


async def claim(pool: Pool, *agents: AgentId, targets: tuple[str, ...] = (TARGET,), row_limit: int = 10) -> list[Claim]:
    """Claim what is due for these agents."""
    keys = [(PROJECT, agent) for agent in agents]
    return await pool.run(lambda conn: claim_inbox(conn, keys, targets, row_limit=row_limit))


async def start(pool: Pool, agent: AgentId = ALICE) -> TurnRef:
    """Claim the agent's one leased turn."""
    [claimed] = await claim(pool, agent)
    assert claimed.verdict == "start"
    return claimed.turn()


async def lease(pool: Pool, agent: AgentId = ALICE, **fields: Any) -> TurnRef:
    """Enqueue to an idle agent and claim: a dispatched turn."""
    await ask(pool, agent, **fields)
    return await start(pool, agent)


def turn_of(leased: Lease, like: TurnRef) -> TurnRef:
    """The reference to the turn of an unclaimed lease, with the boxes of `like`."""
    return TurnRef.model_validate(like.model_dump() | leased.model_dump())


def card(turn: TurnRef, step: int, name: str, kind: CardType = CardType.THOUGHT, text: str = "so be it") -> Card:
    """A card of a step."""
    step_name = step_id(turn.agent_turn_id, step)
    return make_card(
        step_card_id(step_name, name),
        kind,
        Role.ASSISTANT,
        TextContent(text=text),
        author=turn.agent_id,
        turn=turn.agent_turn_id,
        step=step_name,
        trace=turn.trace_id,
    )


def middle_record(turn: TurnRef, step: int) -> StepRecord:
    """A step with one thought, after which another step follows."""
    return StepRecord(step, ContinueMetadata(), [card(turn, step, "thought")], [], STARTED)


def last_record(turn: TurnRef, step: int) -> StepRecord:
    """A step with one thought and the deliverable."""
    cards = [card(turn, step, "thought"), card(turn, step, "deliverable", CardType.DELIVERABLE)]
    return StepRecord(step, EndMetadata(), cards, [], STARTED)


async def dispatch(pool: Pool, keys: Sequence[AgentKey]) -> list[NewLease]:
    """dispatch_next."""
    return await pool.run(lambda conn: dispatch_next(conn, keys))


async def announce(pool: Pool, turns: Sequence[AgentTurnId]) -> None:
    """mark_announced."""
    await pool.run(lambda conn: mark_announced(conn, turns))


async def begin(pool: Pool, turn: TurnRef, step: int = 1, cache: BoxCache | None = None) -> BegunStep:
    """begin_step, with an empty cache if none is given."""
    known = cache if cache is not None else BoxCache(0)
    return await pool.run(lambda conn: begin_step(conn, turn, step, known))


async def commit(pool: Pool, turn: TurnRef, step: int = 1) -> CommittedStep:
    """commit_step of a middle step."""
    return await pool.run(lambda conn: commit_step(conn, turn, middle_record(turn, step)))


async def finish_on(conn: Connection, turn: TurnRef, step: int = 1) -> FinishedTurn:
    """finish_turn by its own step, on this connection."""
    record = last_record(turn, step)
    return await finish_turn(conn, turn, Ending(TurnStatus.SUCCESS, record.cards[-1].card_id), record=record)


async def finish(pool: Pool, turn: TurnRef, step: int = 1) -> FinishedTurn:
    """finish_turn by its own step."""
    return await pool.run(lambda conn: finish_on(conn, turn, step))


async def play(pool: Pool, agent: AgentId = ALICE) -> TurnRef:
    """The agent's leased turn from claim to end, in one step."""
    turn = await start(pool, agent)
    await begin(pool, turn)
    await finish(pool, turn)
    return turn


async def drain(pool: Pool) -> None:
    """Run every remaining turn to its end, whatever its state is; calls time out at once."""
    while True:
        await pool.run(lambda conn: release_stale_claims(conn, [TARGET], older_seconds=0, row_limit=500))
        await dispatch(pool, await pool.run(lambda conn: list_stranded(conn, [TARGET], row_limit=50)))
        live = await rows(
            pool, "SELECT agent_id, active_agent_turn_id, status FROM state.agent_state_head WHERE status <> 'idle'"
        )
        if not live and not await value(pool, "SELECT count(*) FROM state.queued_turns"):
            return
        for row in live:
            await claim(pool, row["agent_id"], row_limit=500)
            turn = await locate(pool, row["active_agent_turn_id"])
            assert turn is not None
            if row["status"] == "suspended":
                await wake(pool, turn)
            begun = await begin(pool, turn, 0)
            await finish(pool, turn, begun.head.step_count + 1)


async def wake(pool: Pool, turn: TurnRef) -> None:
    """Time out what a suspended turn waits for."""
    await rows(pool, "UPDATE state.turn_waiting_tools SET deadline = now() WHERE agent_id = $1", turn.agent_id)
    rings = await pool.run(lambda conn: inject_timeouts(conn, turn))
    await pool.run(lambda conn: apply_reports(conn, turn, [ring.inbox_id for ring in rings]))


async def locate(pool: Pool, turn: AgentTurnId) -> LiveTurn | None:
    """locate_turn."""
    return await pool.run(lambda conn: locate_turn(conn, PROJECT, turn))


@dataclass(frozen=True)
class Position:
    """A card in a box."""

    position: int
    card_id: CardId
    type: str


async def box(pool: Pool, box_id: BoxId | None) -> list[Position]:
    """The stored cards of a box with their positions."""
    async with pool.connection() as conn:
        rows = await conn.fetch(
            "SELECT position, card_id, metadata ->> 'type' AS type FROM box_cards JOIN cards USING (card_id)"
            " WHERE box_id = $1::text::uuid ORDER BY position",
            box_id,
        )
    return [Position(row["position"], row["card_id"], row["type"]) for row in rows]


async def rows(pool: Pool, statement: str, *args: Any) -> list[dict[str, Any]]:
    """The rows of a statement that only a test executes."""
    async with pool.connection() as conn:
        return [dict(row) for row in await conn.fetch(statement, *args)]


async def value(pool: Pool, statement: str, *args: Any) -> Any:
    """The one value of such a statement."""
    [row] = await rows(pool, statement, *args)
    [only] = row.values()
    return only


async def head(pool: Pool, agent: AgentId = ALICE, project: ProjectId = PROJECT) -> dict[str, Any]:
    """The agent's head row."""
    [row] = await rows(
        pool, "SELECT * FROM state.agent_state_head WHERE agent_id = $1 AND project_id = $2", agent, project
    )
    return row


async def stop_on(conn: Connection, agent: AgentId, turn: AgentTurnId | Enqueued) -> QueuedStop | None:
    """stop_queued_turn with the deliverable of a stop, on this connection."""
    name = turn.reply.agent_turn_id if isinstance(turn, Enqueued) else turn
    assert name is not None
    content = TextContent(text="stopped")
    deliverable = make_card(
        turn_card_id(name, "deliverable"), CardType.DELIVERABLE, Role.ASSISTANT, content, author="system", turn=name
    )
    return await stop_queued_turn(conn, PROJECT, agent, name, deliverable, "stopped")


async def stop(pool: Pool, agent: AgentId, turn: AgentTurnId | Enqueued) -> QueuedStop | None:
    """stop_queued_turn."""
    return await pool.run(lambda conn: stop_on(conn, agent, turn))
