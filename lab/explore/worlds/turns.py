"""The moves of turns: a client, a bridge, workers, tools, timers and whoever stops or reaps (protocol §6 to §8).

A `Script` says what a turn's steps may come to, a `Cast` who else is there. All ids are made of the turn's letter, so
that worlds of like turns can be folded by renaming.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from lab.explore.net import LEDGER_RULES, REAPS, TARGET, claim, rule_move
from lab.explore.statements import statement
from lab.explore.world import Move, Net, View, World
from turnstile.bridge.safety.reconciler import MAX_RESTARTS
from turnstile.ledger.operations import sweep
from turnstile.ledger.operations.recovery import restart_turn
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import BoxCache, box_cards
from turnstile.ledger.turns.ends import (
    STOP_REASON,
    STOPPED,
    Ending,
    end_by_fallback,
    fallback_card,
    fallback_ending,
    fence,
    finish_turn,
    mark_announced,
)
from turnstile.ledger.turns.intake import Enqueue, _cards, enqueue_turn, stop_queued_turn
from turnstile.ledger.turns.lease import LiveTurn, claim_inbox, dispatch_next
from turnstile.ledger.turns.roster import add_agent, put_profile
from turnstile.ledger.turns.steps import StepRecord, begin_step, commit_step
from turnstile.ledger.turns.waiting import apply_reports, inject_timeouts, report_call, request_stop
from turnstile.schema.cards import (
    Card,
    CardType,
    JsonContent,
    Role,
    TextContent,
    ToolCallContent,
    ToolResultContent,
    make_card,
)
from turnstile.schema.errors import Refused, StaleTurn
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    CardId,
    ChannelId,
    InboxId,
    ProjectId,
    ToolCallId,
    step_card_id,
    step_id,
    turn_card_id,
)
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.states import AfterExecution, HeadStatus, StepStatus, TurnStatus
from turnstile.schema.step_metadata import ContinueMetadata, EndMetadata, SuspendMetadata
from turnstile.schema.tools import ToolCommand
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import EnqueueRequest, ReportRequest
from turnstile.schema.wire.ui_actions import UiAction

PROJECT, CHANNEL = ProjectId("p1"), ChannelId("public")
ALICE, BOB = AgentId("alice"), AgentId("bob")
MOMENT = datetime(2020, 1, 1, tzinfo=UTC)
WAIT_SECONDS = 24 * 3600.0
"""Longer than any exploration: a deadline passes by a move."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The step sends these calls; `ends` are those whose result ends the turn."""

    names: tuple[str, ...]
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Goes:
    """The step says something, and another follows."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The step delivers."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The step finds a result that ends the turn: no model is asked, and no step is made."""


Step = Calls | Goes | Ends | Ended


@dataclass(frozen=True, slots=True)
class Script:
    """A turn: its letter, its agent, and what each of its steps may come to, by two attempts perhaps differently."""

    letter: str
    steps: tuple[tuple[Step, ...], ...]
    agent: AgentId = ALICE
    box: str = ""
    """The letter of the turn whose output box it shares; its own by default."""
    action: bool = False
    """Whether it is a UI action."""

    @property
    def turn(self) -> AgentTurnId:
        return AgentTurnId(f"turn_{self.letter}")

    @property
    def inbox(self) -> InboxId:
        return InboxId(f"row_{self.letter}")

    @property
    def trace(self) -> str:
        return f"{self.letter * 4}{'0' * 28}"

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace}-{'1' * 16}-01"

    def box_id(self, kind: str) -> BoxId:
        """Its context (`c`) or output (`d`) box."""
        letter = self.box if kind == "d" and self.box else self.letter
        return BoxId(f"{letter * 8}-0000-7000-8000-00000000000{kind}")

    def call(self, step: int, name: str) -> ToolCallId:
        """The id of a call."""
        return ToolCallId(f"call_{self.letter}{step}{name}")

    def calls(self) -> Iterator[tuple[int, str, bool]]:
        """Step and name of every call that it may send, and whether its result ends the turn."""
        for number, choices in enumerate(self.steps, 1):
            for choice in choices:
                if isinstance(choice, Calls):
                    yield from ((number, name, name in choice.ends) for name in choice.names)


def renaming(*letters: str) -> Mapping[str, str]:
    """The renaming that makes each of these turns the next."""
    renamed: dict[str, str] = {}
    for old, new in zip(letters, (*letters[1:], letters[0]), strict=True):
        renamed |= {f"{each}_{old}": f"{each}_{new}" for each in ("turn", "row", "call", "corr")}
        renamed[old * 8] = new * 8
        renamed[old * 4 + "0" * 28] = new * 4 + "0" * 28
    return renamed


@dataclass(frozen=True, slots=True)
class Cast:
    """Who is there beside the clients, the bridge and the workers."""

    scripts: tuple[Script, ...]
    stops: tuple[str, ...] = ()
    """The letters of the turns that somebody stops."""
    reaps: tuple[str, ...] = ()
    """The turns that are fenced, although a worker may be on them."""
    sweeps: bool = True
    """Whether statements of the net come at any time; all of its rules come where the net is alone."""
    wipes: bool = False
    """Whether Temporal's data is deleted at any time, and turns started again."""
    loses: bool = True
    """Whether a bridge may die between a claim and the start of the workflow."""
    reports: Sequence[TurnStatus] = (TurnStatus.SUCCESS,)
    """How a tool may report."""

    def by(self, letter: str) -> Script:
        return next(each for each in self.scripts if each.letter == letter)


async def prepare(pool: Pool, agents: Iterable[AgentId]) -> None:
    """A profile, its agents, and a worker that serves them."""
    await put_profile(pool, PROJECT, Profile(name="helper", llm_config=LlmConfig(model="scripted/echo")))
    for agent in agents:
        await add_agent(pool, PROJECT, agent, "helper")
    await pool.run(lambda conn: statement("sign_on").many(conn, worker_target=TARGET))


def part_of(view: View, part: str) -> Sequence[str]:
    """The rows that a move reads.

    `turn a` are the rows that name the turn, and whose each head is. `agent a` are these and the queue, for moves that
    may end the turn: they lease the next one. `live` are those of claims: what is not final. `net` are these and the
    outcomes.
    """
    kind, _, letter = part.partition(" ")
    if kind in {"live", "net"}:
        live = [json.dumps(row, sort_keys=True) for row in view.all("agent_inbox", archived_at=None)]
        tables = ["agent_state_head", "turn_waiting_tools", "workflows", *(["turn_outcomes"] if kind == "net" else [])]
        return [*live, *view.texts(tables=tables)]
    words = [*(f"{each}_{letter}" for each in ("turn", "row", "call", "corr")), letter * 8]
    tables = []
    if kind == "agent":
        words.append('"status": "queued"')
        tables = ["agent_state_pointers"]
    heads = [
        f"{row['agent_id']} {row['status']} {row['active_agent_turn_id']} {row['turn_epoch']}"
        for row in view.table("agent_state_head")
    ]
    return [*view.texts(words, tables=tables), *heads]


def _of_turn(script: Script, move: Move) -> Move:
    """The same with the part that it reads."""
    ends = move.name.split()[0] not in _WITHIN
    return replace(move, part=f"{'agent' if ends else 'turn'} {script.letter}", alone=True)


_WITHIN = {"begin", "call", "go-on", "report", "apply", "expire", "deadline", "announce", "stop", "restart"}
"""Moves that read and write rows of their turn only, and of its agent's head."""


def gated(do: Callable[[Pool], Awaitable[str]]) -> Callable[[Pool], Awaitable[str]]:
    """The same; a closed gate and a refusal are answers."""

    async def tried(pool: Pool) -> str:
        try:
            return await do(pool)
        except StaleTurn:
            return "stale"
        except Refused as error:
            return f"refused {error.code}"

    return tried


def turn_moves(cast: Cast, view: View) -> list[Move]:
    """Every move of this cast in this state."""
    moves: list[Move] = []
    for script in cast.scripts:
        asks = Move(f"enqueue {script.letter}", gated(lambda pool, s=script: _enqueue(pool, s)))
        moves.append(_of_turn(script, asks))
        row = view.find("agent_inbox", inbox_id=script.inbox)
        if row is None:
            continue
        moves += _stops(cast, script, view)
        if row["turn_epoch"] and view.find("workflows", agent_turn_id=script.turn) is not None:
            turn = turn_ref(script, row)
            late = _steps(script, turn, view) + _waits(cast, script, turn, view)
            moves += [_of_turn(script, move) for move in late]
    moves += _bridge(cast, view)
    if cast.wipes and any(row["known"] for row in view.table("workflows")):
        moves.append(Move("wipe", _wipe, part="live", alone=True))
    return moves


def turn_ref(script: Script, row: Mapping[str, Any]) -> TurnRef:
    """What everybody who works on the turn holds of it: it stays the same, however late they come."""
    return TurnRef(
        project_id=PROJECT,
        channel_id=CHANNEL,
        agent_id=script.agent,
        agent_turn_id=script.turn,
        turn_epoch=row["turn_epoch"],
        inbox_id=script.inbox,
        worker_target=TARGET,
        profile_box_id=BoxId(row["payload"]["profile_box_id"]),
        context_box_id=script.box_id("c"),
        output_box_id=script.box_id("d"),
        trace_id=script.trace,
    )


def world_of(name: str, says: str, cast: Cast, swaps: Sequence[Mapping[str, str]] = ()) -> World:
    """The world of this cast."""
    agents = list(dict.fromkeys(script.agent for script in cast.scripts))
    return World(
        name=name,
        says=says,
        prepare=lambda pool: prepare(pool, agents),
        moves=lambda view: turn_moves(cast, view),
        net=net_of(cast),
        at_end=not_over,
        part=part_of,
        swaps=swaps,
    )


def not_over(view: View) -> list[str]:
    """What is not over yet: turns without an outcome, heads that are busy, rows that are live, ends not announced."""
    left = [f"{row['agent_id']} is {row['status']}" for row in view.table("agent_state_head") if row["status"] != "idle"]
    for row in view.table("agent_inbox"):
        if row["archived_at"] is None:
            left.append(f"{row['inbox_id']} is {row['status']}")
        if row["message_type"] in {"turn", "ui_action"} and not view.find("turn_outcomes", inbox_id=row["inbox_id"]):
            left.append(f"{row['agent_turn_id']} has no outcome")
    left += [f"{row['agent_turn_id']} is not announced" for row in view.all("turn_outcomes", announced_at=None)]
    return left


# --- the client


def enqueue_command(script: Script) -> Enqueue:
    """The request of this turn; a repeat has the same content and ids of its own, which are never used."""
    action = None
    request = EnqueueRequest(
        agent_id=script.agent,
        instruction=None if script.action else "hello",
        correlation_id=f"corr_{script.letter}",
        output_box_id=script.box_id("d") if script.box else None,
    )
    if script.action:
        action = UiAction(action_id=f"corr_{script.letter}", agent_id=script.agent, tool_name="search", args={"q": "it"})
        request = EnqueueRequest(agent_id=script.agent, correlation_id=action.correlation_id)
    return Enqueue(
        project_id=PROJECT,
        channel_id=CHANNEL,
        request=request,
        context_headers=headers.context_headers({headers.TRACEPARENT: script.traceparent}),
        depth_limit=20,
        agent_turn_id=script.turn,
        inbox_id=script.inbox,
        new_context_box_id=script.box_id("c"),
        new_output_box_id=script.box_id("d"),
        action=action,
    )


async def _enqueue(pool: Pool, script: Script) -> str:
    command = enqueue_command(script)
    done = await pool.run(lambda conn: enqueue_turn(conn, command, _cards(command, "user.test")))
    return done.reply.status.value


def _stops(cast: Cast, script: Script, view: View) -> list[Move]:
    """Whoever asks for a stop may have found the turn queued, or leased, a while ago."""
    if script.letter not in cast.stops:
        return []

    async def ask(pool: Pool) -> str:
        row = InboxId(f"stop_{script.turn}")
        return (await pool.run(lambda conn: request_stop(conn, PROJECT, script.turn, "enough", row))).verdict

    async def stop_queued(pool: Pool) -> str:
        card = fallback_card(_unleased(script), (), TurnStatus.CANCELED, STOP_REASON)
        done = await pool.run(lambda conn: stop_queued_turn(conn, PROJECT, script.agent, script.turn, card, STOPPED))
        return "not queued" if done is None else "stopped"

    moves = [Move(f"stop {script.letter}", ask), Move(f"stop-queued {script.letter}", stop_queued)]
    row = view.find("agent_inbox", inbox_id=script.inbox)
    if row is not None and row["turn_epoch"]:
        turn = turn_ref(script, row)

        async def stop_leased(pool: Pool) -> str:
            leased = (HeadStatus.DISPATCHED,)
            return (await end_by_fallback(pool, turn, TurnStatus.CANCELED, STOPPED, STOP_REASON, leased)).result

        moves.append(Move(f"stop-leased {script.letter}", gated(stop_leased)))
    return [_of_turn(script, move) for move in moves]


def _unleased(script: Script) -> TurnRef:
    return turn_ref(script, {"turn_epoch": 0, "payload": {"profile_box_id": ""}})


# --- the workers


def _steps(script: Script, turn: TurnRef, view: View) -> list[Move]:
    """Every step that an attempt may begin, and every one that an attempt has begun and may still commit."""
    recorded = len(view.all("agent_steps", agent_turn_id=script.turn))
    head = view.find("agent_state_head", active_agent_turn_id=script.turn)
    over = view.find("turn_outcomes", agent_turn_id=script.turn)
    begun = recorded
    if (head is not None and head["step_attempt"]) or (over is not None and over["started_at"]):
        begun += 1
    stopping = view.find("agent_inbox", inbox_id=f"stop_{script.turn}") is not None
    moves: list[Move] = []
    for number, choices in enumerate(script.steps, 1):
        name = f"{script.letter} {number}"
        if number <= recorded + 1:
            moves.append(Move(f"begin {name}", gated(lambda pool, n=number: _begin(pool, turn, n))))
        if number <= begun:
            moves += [_move(script, turn, number, each) for each in choices if _may_be(script, each, view)]
            if stopping:
                moves.append(Move(f"cancel {name}", gated(lambda pool, n=number: _cancel(pool, turn, n))))
    if stopping:

        async def end_stopped(pool: Pool) -> str:
            return (await end_by_fallback(pool, turn, TurnStatus.CANCELED, STOPPED, STOP_REASON)).result

        moves.append(Move(f"end-stopped {script.letter}", gated(end_stopped)))
    if over is not None:

        async def announce(pool: Pool) -> str:
            await pool.run(lambda conn: mark_announced(conn, [script.turn]))
            return "announced"

        moves.append(Move(f"announce {script.letter}", announce))
    return moves


def _may_be(script: Script, choice: Step, view: View) -> bool:
    """Whether an attempt can come to this: a result that ends the turn leaves nothing else, and nothing else does."""
    ending = [script.call(number, name) for number, name, ends in script.calls() if ends]
    if not ending or isinstance(choice, Calls):
        return True
    ended = any(row["tool_call_id"] in ending and row["wait_status"] == "applied" for row in view.table("turn_waiting_tools"))
    return ended == isinstance(choice, Ended)


def _move(script: Script, turn: TurnRef, number: int, choice: Step) -> Move:
    name = f"{script.letter} {number}"
    match choice:
        case Calls(names):
            said = f"call {name} {','.join(names)}"
            return Move(said, gated(lambda pool: _call(pool, script, turn, number, names)))
        case Goes():
            return Move(f"go-on {name}", gated(lambda pool: _go_on(pool, turn, number)))
        case Ends():
            return Move(f"finish {name}", gated(lambda pool: _finish(pool, turn, number)))
        case Ended():
            return Move(f"terminate {name}", gated(lambda pool: _terminate(pool, turn)))


async def _begin(pool: Pool, turn: TurnRef, number: int) -> str:
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


async def _call(pool: Pool, script: Script, turn: TurnRef, number: int, names: Sequence[str]) -> str:
    calls = [script.call(number, name) for name in names]
    sent = [
        ToolCommand(
            tool_call_id=call,
            tool_name="search",
            tool_call_card_id=CardId(f"{call}-call"),
            after_execution=AfterExecution.SUSPEND,
            subject=f"cg.v1r4.{PROJECT}.{CHANNEL}.cmd.tool.search.run",
        )
        for call in calls
    ]
    cards = [
        make_card(
            CardId(each.tool_call_card_id),
            CardType.TOOL_CALL,
            Role.ASSISTANT,
            ToolCallContent(tool_name="search", arguments={"q": "it"}, target_subject=each.subject),
            author=turn.agent_id,
            turn=turn.agent_turn_id,
            step=step_id(turn.agent_turn_id, number),
            trace=turn.trace_id,
            tool_call=each.tool_call_id,
        )
        for each in sent
    ]
    thoughts = [] if script.action else [_thought(turn, number)]
    metadata = SuspendMetadata(commands=tuple(sent))
    record = StepRecord(number, metadata, [*thoughts, *cards], calls, MOMENT, wait_seconds=WAIT_SECONDS)
    return (await pool.run(lambda conn: commit_step(conn, turn, record))).result


async def _go_on(pool: Pool, turn: TurnRef, number: int) -> str:
    record = StepRecord(number, ContinueMetadata(), [_thought(turn, number)], [], MOMENT)
    return (await pool.run(lambda conn: commit_step(conn, turn, record))).result


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


async def _finish(pool: Pool, turn: TurnRef, number: int) -> str:
    card = _deliverable(turn)
    record = StepRecord(number, EndMetadata(), [_thought(turn, number), card], [], MOMENT)
    ending = Ending(TurnStatus.SUCCESS, card.card_id)
    return (await pool.run(lambda conn: finish_turn(conn, turn, ending, record=record))).result


async def _terminate(pool: Pool, turn: TurnRef) -> str:
    card = _deliverable(turn)
    ending = Ending(TurnStatus.SUCCESS, card.card_id)
    return (await pool.run(lambda conn: finish_turn(conn, turn, ending, cards=[card]))).result


async def _cancel(pool: Pool, turn: TurnRef, number: int) -> str:
    """A step that was stopped: it ends the turn itself (§6, stop)."""
    made = await pool.run(lambda conn: box_cards(conn, PROJECT, turn.output_box_id))
    card, ending = fallback_ending(turn, made or (), TurnStatus.CANCELED, STOPPED, STOP_REASON)
    record = StepRecord(number, EndMetadata(), [card], [], MOMENT, StepStatus.CANCELED)
    done = await pool.run(lambda conn: finish_turn(conn, turn, ending, record=record, raise_epoch=True))
    return done.result


# --- tools, timers and the workflow


def _waits(cast: Cast, script: Script, turn: TurnRef, view: View) -> list[Move]:
    moves: list[Move] = []
    for number, name, ends in script.calls():
        call = script.call(number, name)
        if view.find("turn_waiting_tools", tool_call_id=call) is not None:
            moves += [_report(script, call, ends, status, view) for status in cast.reports]
    head = view.find("agent_state_head", active_agent_turn_id=script.turn)
    if head is not None and (head["resume_deadline"] or "") > "2090":
        moves.append(Move(f"deadline {script.letter}", lambda pool: _pass(pool, script.turn)))
    if any(True for _ in script.calls()):
        moves.append(Move(f"expire {script.letter}", gated(lambda pool: _expire(pool, turn))))
    rows = [row for row in view.all("agent_inbox", agent_turn_id=script.turn) if row["message_type"] in _REPORTS]
    live = sorted(row["inbox_id"] for row in rows if row["archived_at"] is None)
    for found in [live] + ([[each] for each in live] if len(live) > 1 else []):
        if found:
            moves.append(_apply(script, turn, found))
    final = sorted(row["inbox_id"] for row in rows if row["archived_at"] is not None)
    if final and not live:
        moves.append(_apply(script, turn, final))
    if cast.wipes:
        moves += _restarts(script, turn, view)
    if script.letter in cast.reaps:

        async def reap(pool: Pool) -> str:
            return (await fence(pool, turn, TurnStatus.FAILED, "timeout_reaped_by_watchdog", "no sign of life")).result

        moves.append(Move(f"fence {script.letter}", gated(reap)))
    return moves


def _restarts(script: Script, turn: TurnRef, view: View) -> list[Move]:
    """The loss of a workflow is recorded, by a bridge that saw it once as few times lost as this, or fewer."""
    head = view.find("agent_state_head", active_agent_turn_id=script.turn)
    if head is None:
        return []

    async def restart(pool: Pool, times: int) -> str:
        seen = LiveTurn.model_validate(
            turn.model_dump() | {"status": "running", "updated_at": MOMENT, "resume_deadline": None, "restart_count": times}
        )
        return f"restarted {await pool.run(lambda conn: restart_turn(conn, seen, counted=True))}"

    most = min(head["restart_count"], MAX_RESTARTS - 1)
    return [
        Move(f"restart {script.letter} {times}", gated(lambda pool, n=times: restart(pool, n))) for times in range(most + 1)
    ]


async def _wipe(pool: Pool) -> str:
    await pool.run(lambda conn: statement("wipe_engine").many(conn))
    return "wiped"


_REPORTS = {"tool_result", "timeout"}


def _report(script: Script, call: ToolCallId, ends: bool, status: TurnStatus, view: View) -> Move:
    """The report of a call, or the repeat of one, which has another inbox id."""
    earlier = view.find("agent_inbox", correlation_id=call, message_type="tool_result")
    after = AfterExecution.TERMINATE if ends else None
    content = ToolResultContent(status=status, after_execution=after, result="found").model_dump_json()
    row = InboxId(f"{call}-report" if earlier is None else f"{call}-repeat")
    incoming = {headers.TRACEPARENT: script.traceparent}

    async def do(pool: Pool) -> str:
        request = ReportRequest(tool_call_id=call, status=status, after_execution=after, result="found")
        done = await pool.run(lambda conn: report_call(conn, PROJECT, request, content, row, incoming))
        return "duplicate" if done.reply.duplicate else "accepted"

    said = "" if status is TurnStatus.SUCCESS else f" {status.value}"
    return Move(f"report {call}{said}", gated(do))


async def _pass(pool: Pool, turn: AgentTurnId) -> str:
    await pool.run(lambda conn: statement("pass_deadlines").many(conn, agent_turn_id=turn))
    return "passed"


async def _expire(pool: Pool, turn: TurnRef) -> str:
    return f"rings {len(await pool.run(lambda conn: inject_timeouts(conn, turn)))}"


def _apply(script: Script, turn: TurnRef, rows: Sequence[str]) -> Move:
    async def do(pool: Pool) -> str:
        ids = [InboxId(each) for each in rows]
        return (await pool.run(lambda conn: apply_reports(conn, turn, ids))).status.value

    return Move(f"apply {script.letter} {','.join(rows)}", gated(do))


# --- the bridge


def _bridge(cast: Cast, view: View) -> list[Move]:
    moves: list[Move] = []
    for agent in dict.fromkeys(script.agent for script in cast.scripts):
        live = [row for row in view.all("agent_inbox", agent_id=agent) if row["archived_at"] is None]
        if any(row["status"] in {"pending", "deferred"} for row in live):
            moves.append(Move(f"claim {agent}", lambda pool, a=agent: _claim(pool, a), repeats=False, skips=True))
            moves[-1] = replace(moves[-1], part="live", alone=True)
            if cast.loses:
                die = Move(f"claim-and-die {agent}", lambda pool, a=agent: _claim_only(pool, a), repeats=False, skips=True)
                moves.append(replace(die, part="live", alone=True))
        if any(row["status"] == "queued" for row in live):
            moves.append(Move(f"dispatch {agent}", lambda pool, a=agent: _dispatch(pool, a)))
    return [*moves, *(_sweeps(view) if cast.sweeps else [])]


async def _claim(pool: Pool, agent: AgentId) -> str:
    await claim(pool, [(PROJECT, agent)])
    return "claimed"


async def _claim_only(pool: Pool, agent: AgentId) -> str:
    found = await pool.run(lambda conn: claim_inbox(conn, [(PROJECT, agent)], [TARGET], row_limit=64))
    return " ".join(sorted(each.verdict for each in found))


async def _dispatch(pool: Pool, agent: AgentId) -> str:
    return f"leased {len(await pool.run(lambda conn: dispatch_next(conn, [(PROJECT, agent)])))}"


# --- the net


_SWEEPS = {
    "claims": sweep.release_stale_claims,
    "dispatched_retry": sweep.retry_dispatched,
    "resume": sweep.retry_resumes,
}
"""The statements of the net that write without a look before; a bridge may die after each, before it claims."""


def _sweeps(view: View) -> list[Move]:
    moves: list[Move] = []
    if any(row["status"] == "processing" for row in view.table("agent_inbox")):
        moves += [Move(f"sweep {name}", lambda pool, n=name: _sweep(pool, n), skips=True, part="live", alone=True) for name in _SWEEPS]
    if any(head["status"] == "suspended" for head in view.table("agent_state_head")):
        moves.append(Move("sweep command", _repeat_commands, skips=True, part="live", alone=True))
    return moves


async def _sweep(pool: Pool, name: str) -> str:
    found = await pool.run(lambda conn: _SWEEPS[name](conn, [TARGET], older_seconds=1, row_limit=500))
    return f"found {len(found)}"


async def _repeat_commands(pool: Pool) -> str:
    found = await pool.run(lambda conn: sweep.retry_commands(conn, [TARGET], older_seconds=1, row_limit=500))
    return f"found {len(found)}"


def net_of(cast: Cast) -> Net:
    """The net of a world with this cast, and the worker that lives."""
    return Net(
        rules=[rule_move(name) for name in LEDGER_RULES],
        time=lambda view: [move for move in turn_moves(cast, view) if move.name.startswith("deadline ")],
        reaps=[rule_move(name) for name in REAPS],
        healthy=lambda view: _healthy(cast, view),
    )


def _healthy(cast: Cast, view: View) -> Iterable[Move]:
    """What the worker of each turn in hand does next: apply what is due, begin, or commit what its script says first."""
    for script in cast.scripts:
        head = view.find("agent_state_head", active_agent_turn_id=script.turn)
        if head is None:
            continue
        wanted = {
            "suspended": ("apply",),
            "dispatched": ("begin",),
            "running": ("call", "go-on", "finish", "terminate") if head["step_attempt"] else ("begin",),
        }[head["status"]]
        moves = {move.name: move for move in turn_moves(cast, view)}
        number = str(head["step_count"] + 1)
        for verb in wanted:
            names = [name.split() for name in moves if name.startswith(f"{verb} {script.letter} ")]
            named = [name for name in names if verb == "apply" or name[2] == number]
            if named:
                yield moves[" ".join(named[0])]
                break
