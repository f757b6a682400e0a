"""Who is in a world of turns: the scripts of its turns, and the parts of the world that their moves read.

A `Script` says what a turn's steps may come to, a `Cast` who else is there. All ids are made of the turn's letter, so
that worlds of like turns can be folded by renaming.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from lab.explore.net import TARGET
from lab.explore.statements import statement
from lab.explore.world import Move, View
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.ledger.trees.batches import Batch
from turnstile.schema.errors import Refused, StaleTurn
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    ChannelId,
    InboxId,
    ProjectId,
    ToolCallId,
)
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.states import SteerPriority, TurnStatus
from turnstile.schema.turns import TurnRef

PROJECT, CHANNEL, RED = ProjectId("p1"), ChannelId("public"), ChannelId("u_red")
ALICE, BOB, CAROL = AgentId("alice"), AgentId("bob"), AgentId("carol")
MOMENT = datetime(2020, 1, 1, tzinfo=UTC)
WAIT_SECONDS = 24 * 3600.0
"""Longer than any exploration: a deadline passes by a move."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The step sends these calls; `ends` are those whose result ends the turn, `held` those that wait for people."""

    names: tuple[str, ...]
    ends: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Goes:
    """The step says something, and another follows."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The step delivers."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The step finds a result that ends the turn: no model is asked, and no step is made."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """The step compacts the memory: nothing from before its turn stays. Only a first step that remembers may."""


Step = Calls | Goes | Ends | Ended | Cuts


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
    talk: str = ""
    """The conversation that it is in: the first turn of it that is enqueued brings the box."""
    by: str = "me"
    """Who asks for it, if it is in a conversation."""
    over: str = ""
    """Its strategy, if it is another than `enqueue`: what becomes of the turns before it."""
    budget: int = 0
    """The tokens of a budget of its own, if it has one."""
    claimed: bool = False
    """Whether its enqueue claims it, by a bridge that dies before it starts a workflow."""
    spends: bool = False
    """Whether its attempts reserve, of its own budget or its project's."""
    channel: ChannelId = CHANNEL
    """The channel that it is asked for in."""
    strategy: Literal["", "reuse", "clone"] = ""
    """Of a child: whether it writes where `BOB` does, or reads what he wrote there, as the call's channel sees it."""

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
        """Its context (`c`) or output (`d`) box, or the one that its compaction makes (`e`)."""
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

    def held(self) -> Iterator[ToolCallId]:
        """Every call that it may make and that waits for people."""
        for number, choices in enumerate(self.steps, 1):
            for choice in choices:
                if isinstance(choice, Calls):
                    yield from (self.call(number, name) for name in choice.held)


def renaming(*letters: str) -> Mapping[str, str]:
    """The renaming that makes each of these turns the next."""
    renamed: dict[str, str] = {}
    for old, new in zip(letters, (*letters[1:], letters[0]), strict=True):
        renamed |= {f"{kind}_{old}": f"{kind}_{new}" for kind in ("turn", "row", "call", "corr")}
        renamed[old * 8] = new * 8
        renamed[old * 4 + "0" * 28] = new * 4 + "0" * 28
    return renamed


@dataclass(frozen=True, slots=True)
class Fork:
    """The call `x` of a turn's first step is forked into these children, whose scripts are in the cast, too."""

    parent: str
    children: tuple[str, ...]
    batch: Batch
    start: Literal["asked", "forked", "begun"] = "forked"
    """How the world starts: the call was sent; its children are enqueued; or they are in their first step."""

    @property
    def name(self) -> str:
        return f"{self.parent}1x"


@dataclass(frozen=True, slots=True)
class Cast:
    """Who is there beside the clients, the bridge and the workers."""

    scripts: tuple[Script, ...]
    stops: tuple[str, ...] = ()
    """The letters of the turns that somebody stops."""
    steers: tuple[tuple[str, SteerPriority], ...] = ()
    """What is said to turns: the letter, and when it shall be heard."""
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
    forks: tuple[Fork, ...] = ()
    """The calls that ask for children; nobody else reports them."""
    times_out: bool = True
    """Whether calls pass their deadlines and are timed out at any time."""
    announces: bool = True
    """Whether ends are announced at any time; the net announces them in every world."""
    day: int = 0
    """The tokens that the project may spend in a day, if that is limited."""
    asks: bool = False
    """Whether the tools that run calls ask a person under them, once each."""
    claims: tuple[AgentId, ...] | None = None
    """The agents whose rows are claimed at any time; by default all. The net claims in every world."""

    @property
    def children(self) -> frozenset[str]:
        """The turns that only a fork makes."""
        return frozenset(letter for fork in self.forks for letter in fork.children)

    @property
    def forked(self) -> frozenset[ToolCallId]:
        """The calls that ask for children."""
        return frozenset(self.by(fork.parent).call(1, "x") for fork in self.forks)

    def by(self, letter: str) -> Script:
        return next(script for script in self.scripts if script.letter == letter)


async def prepare(pool: Pool, agents: Iterable[AgentId]) -> None:
    """A profile, its agents, and a worker that serves them."""
    await put_profile(pool, PROJECT, Profile(name="helper", llm_config=LlmConfig(model="scripted/echo")))
    for agent in agents:
        await add_agent(pool, PROJECT, agent, "helper")
    await pool.run(lambda conn: statement("sign_on").many(conn, worker_target=TARGET))


_NET_PARTS: Mapping[str, Sequence[str]] = {
    "net heads": ("agent_state_head", "workflows"),
    "net calls": ("agent_state_head", "turn_waiting_tools"),
    "net outcomes": ("turn_outcomes",),
    "net batches": ("pmo_batches", "turn_outcomes"),
    "net questions": ("interrupts",),
    "net trees": ("turn_nodes", "agent_inbox", "agent_state_head"),
}
"""What a rule of the net finds nothing by, where it reads no inbox rows."""


def part_of(view: View, part: str) -> Sequence[str]:
    """The rows that a move reads, or by which it finds that it has nothing to do.

    `turn a` are the rows that name the turn, and whose each head is; `step a`, `stop a` and `end a` are these while the
    gate is open. Where the turn is in no head and no queue, every gate is closed: a step then reads nothing, an end
    the outcome, a stop or an enqueue what was asked. `ask a` and `end a` have the queue, since they lease turns.
    `outcome a` is the outcome. `live` are the rows of claims: what is not final. `net` are these and the outcomes.
    """
    kind, _, letter = part.partition(" ")
    if part in _NET_PARTS:
        return view.texts(tables=_NET_PARTS[part])
    if kind == "outcome":
        return [json.dumps(row, sort_keys=True) for row in view.all("turn_outcomes", agent_turn_id=f"turn_{letter}")]
    if kind in {"live", "net"}:
        live = [json.dumps(row, sort_keys=True) for row in view.all("agent_inbox", archived_at=None)]
        tables = ["agent_state_head", "turn_waiting_tools", "workflows", *(["turn_outcomes"] if kind == "net" else [])]
        return [*live, *view.texts(tables=tables)]
    words = (*(f"{what}_{letter}" for what in ("turn", "row", "call", "corr")), letter * 8)
    row = view.find("agent_inbox", inbox_id=f"row_{letter}")
    held = view.find("agent_state_head", active_agent_turn_id=f"turn_{letter}") is not None
    if row is not None and row["status"] != "queued" and not held:
        return _closed(view, kind, words, f"turn_{letter}")
    if kind in {"step", "turn", "stop"}:
        return [*view.texts(words), f"{held}"]
    # an enqueue writes the head, whatever turn it is on
    return view.texts((*words, '"status": "queued"'), tables=("agent_state_pointers", "agent_state_head"))


def _closed(view: View, kind: str, words: tuple[str, ...], turn: str) -> Sequence[str]:
    """The part of a turn that is in no head and no queue."""
    match kind:
        case "step":
            return ["closed"]
        case "end":
            recorded = [row["step_id"] for row in view.all("agent_steps", agent_turn_id=turn)]
            ended = [row["turn_epoch"] for row in view.all("turn_outcomes", agent_turn_id=turn)]
            return ["closed", *sorted(recorded), f"{len(ended)}"]
        case "ask" | "stop":
            row = view.all("agent_inbox", agent_turn_id=turn)
            rows = [json.dumps(r, sort_keys=True) for r in row if r["message_type"] not in _REPORTS]
            return [*rows, f"{len(view.all('turn_outcomes', agent_turn_id=turn))}"]
        case _:
            return view.texts(words)


_REPORTS = {"tool_result", "timeout"}


def of_turn(script: Script, move: Move) -> Move:
    """The same with the part that it reads."""
    kind = _KINDS[move.name.split()[0]]
    return replace(move, part=f"{kind} {script.letter}", alone=True)


_KINDS = {
    **dict.fromkeys(("begin", "call", "go-on", "steered", "cut", "apply", "expire", "deadline", "restart"), "step"),
    **dict.fromkeys(("finish", "cancel", "terminate", "end-stopped", "stop-leased", "fence"), "end"),
    **dict.fromkeys(("enqueue", "stop-queued"), "ask"),
    **dict.fromkeys(("report", "steer", "ask", "decide", "due", "lapse", "reserve"), "turn"),
    "stop": "stop",
    "announce": "outcome",
}
"""Which part of a turn its moves read, by their verb."""


def is_marked(script: Script, view: View) -> bool:
    """Whether the turn is marked, be it over or not."""
    node = view.find("turn_nodes", agent_turn_id=script.turn)
    return node is not None and node["stopping_at"] is not None


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


def turn_ref(script: Script, row: Mapping[str, Any]) -> TurnRef:
    """What everybody who works on the turn holds of it: it stays the same, however late they come."""
    return TurnRef(
        project_id=PROJECT,
        channel_id=script.channel,
        agent_id=script.agent,
        agent_turn_id=script.turn,
        turn_epoch=row["turn_epoch"],
        inbox_id=script.inbox,
        worker_target=TARGET,
        profile_box_id=BoxId(row["payload"]["profile_box_id"]),
        context_box_id=script.box_id("c"),
        output_box_id=BoxId(row["payload"].get("output_box_id") or script.box_id("d")),
        trace_id=script.trace,
    )
