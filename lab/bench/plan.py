"""How much is measured: sizes, rounds, and how worker and bridge are composed."""

from dataclasses import dataclass
from enum import StrEnum


class Scenario(StrEnum):
    """What can be measured, in the order in which it is: what leaves something behind comes last."""

    TURN = "turn"
    TOOL = "tool"
    FANOUT = "fanout"
    STREAM = "stream"
    STOP = "stop"
    LOAD = "load"
    GROWTH = "growth"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class Plan:
    """The defaults take less than 12 minutes on two quiet cores."""

    rounds: int = 3
    """How often turns and yardsticks alternate; the medians count."""
    turns: int = 300
    """Turns, and bare workflows, at once in a round."""
    alone: int = 40
    """The same one after the other."""
    tool_turns: int = 150
    queue: int = 200
    """Turns in one agent's queue, and agents with one turn each."""
    asleep: int = 10_000
    wake: int = 100
    streams: int = 200
    stream_seconds: float = 10.0
    stops: int = 200
    stop_streams: int = 20
    load_seconds: float = 6.0
    old_rows: int = 1_000_000
    growth_turns: int = 600
    tpcb_scale: int = 8
    tpcb_seconds: float = 2.0
    nats_messages: int = 10_000
    warm: int = 20
    """Turns before anything counts."""
    idle_seconds: float = 4.0
    """How long is looked at what worker and bridge use while nothing is asked of them."""
    workers: int = 1
    """Worker processes."""
    split: bool = False
    """Worker and bridge as processes of their own, not as `turnstile up` composes them."""
