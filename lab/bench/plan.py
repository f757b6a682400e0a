"""The sizes and rounds of a run, and how worker and bridge are composed."""

from dataclasses import dataclass
from enum import StrEnum

from lab.bench.providers.forms import FORMS, Form


class Scenario(StrEnum):
    """The scenarios in the order in which they run: those that leave much data behind come last."""

    TURN = "turn"
    STAGES = "stages"
    TOOL = "tool"
    USUAL = "usual"
    BUDGET = "budget"
    FANOUT = "fanout"
    STREAM = "stream"
    PROVIDERS = "providers"
    SOAK = "soak"
    STOP = "stop"
    FORK = "fork"
    LOAD = "load"
    CONVERSATIONS = "conversations"
    GATEWAY = "gateway"
    GROWTH = "growth"
    SUSPENDED = "suspended"
    FAIRNESS = "fairness"
    SYNC = "sync"
    START = "start"
    AUDIT = "audit"
    RETENTION = "retention"


BY_NAME = frozenset(
    {
        Scenario.PROVIDERS,
        Scenario.SOAK,
        Scenario.FAIRNESS,
        Scenario.SYNC,
        Scenario.START,
        Scenario.AUDIT,
        Scenario.RETENTION,
    },
)
"""Scenarios that run only if they are named."""


class GatewayPart(StrEnum):
    """The parts of the scenario `gateway`, in the order in which they run."""

    STREAMS = "streams"
    LATENCY = "latency"
    SLOW = "slow"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run; the defaults take less than 18 minutes on two quiet cores."""

    rounds: int = 3
    """Rounds in which turns and yardsticks alternate; the medians count."""
    turns: int = 300
    """Concurrent turns, and concurrent bare workflows, of a round."""
    alone: int = 40
    """Turns, and bare workflows, one after the other."""
    stage_turns: int = 60
    """Turns, one after the other, whose stages are timed."""
    tool_turns: int = 150
    usual_turns: int = 24
    """Turns at once whose models take as long as real ones."""
    usual_rounds: int = 8
    """How many of these each agent has, one after the other."""
    queue: int = 200
    """Turns in one agent's queue, and agents with one turn each."""
    asleep: int = 10_000
    wake: int = 100
    streams: int = 200
    stream_seconds: float = 10.0
    first_streams: int = 20
    """Streams at once whose first pieces are timed."""
    model: str = ""
    """A real model for `stream`, in place of a script."""
    provider_forms: tuple[Form, ...] = FORMS
    provider_streams: int = 20
    """Streams at once of each wire form."""
    provider_seconds: float = 8.0
    provider_held: tuple[int, ...] = (20, 40, 80, 120, 160, 200, 250, 300)
    """Numbers of streams that a worker is tried with, until it is late."""
    soak_streams: int = 200
    soak_minutes: float = 10.0
    """How long they stream in `soak`, in turns of a minute each, of the first of `provider_forms`."""
    stops: int = 200
    stop_streams: int = 20
    forks: tuple[int, ...] = (16, 128, 1000)
    """Children of one turn."""
    fork_children: int = 128
    """Children of a round at least: small forks are repeated, one after the other."""
    fork_depth: int = 5
    fork_width: int = 3
    """Levels of a tree below its root, and children of each turn above the last."""
    load_seconds: float = 6.0
    conversations: int = 1000
    """Concurrent conversations of one profile, each in an instance of its own."""
    gateway_parts: tuple[GatewayPart, ...] = tuple(GatewayPart)
    sse_clients: int = 1000
    """Clients of one gateway, each cut `sse_cuts` times in a turn of `sse_chunks` chunks."""
    sse_cuts: int = 10
    sse_chunks: int = 500
    sse_turns: int = 10
    """Turns that they follow."""
    sse_gap_seconds: float = 0.2
    """Between the chunks of a turn: longer than they are gathered, so that none are joined."""
    sse_paced: int = 50
    """Streams whose chunks are timed."""
    sse_stuck: int = 200
    """Clients that take nothing."""
    slow_seconds: float = 20.0
    """After how long these are cut."""
    callers: int = 50
    """Callers over HTTP, and over NATS."""
    old_rows: int = 1_000_000
    """Turns of a long past, each with its inbox row and outcome."""
    old_conversations: int = 100_000
    """Conversations in which they were; at most as many as turns."""
    day_turns: int = 10_000
    """Turns of the day that is audited, about what a day of the past has."""
    growth_turns: int = 600
    ended_turns: int = 100_000
    """Ended turns of the ledger that `audit` and `retention` work on; a million take some 4 GB and 4 minutes."""
    flood: int = 1000
    """Turns of the project that floods."""
    quiet_turns: int = 5
    """Turns of the project beside it."""
    tpcb_scale: int = 8
    tpcb_seconds: float = 2.0
    nats_messages: int = 10_000
    warm: int = 20
    """Turns that run before the measurement begins."""
    idle_seconds: float = 4.0
    """How long the use of idle worker and bridge processes is measured."""
    asleep_seconds: float = 120.0
    """How long it is measured while all sleep: several looks of the rules that run once a minute."""
    workers: int = 1
    """Worker processes."""
    split: bool = False
    """Whether worker and bridge are separate processes, instead of one as in `turnstile up`."""

    @property
    def sse_seconds(self) -> float:
        """How long a turn of `gateway` streams."""
        return self.sse_chunks * self.sse_gap_seconds
