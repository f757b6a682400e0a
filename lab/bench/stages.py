"""The stages of a turn: what lies between the moments that a client, the ledger and Temporal note of it. Pure.

A stage is named after the moment in which it ends, and begins where the one before it ended. Their order is that of the
medians, so a moment that comes earlier or later in another release, together with another, or not at all, makes a
shorter list and no wrong one. What lies beside the way from request to event has a begin of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lab.bench.figures import median
from turnstile.schema.base import Strict

REQUESTED, HEARD = "requested", "event"
"""The moments at which a turn begins and ends for its client."""


class Who(StrEnum):
    """Who works in a stage."""

    CLIENT = "client and bridge"
    POSTGRES = "PostgreSQL"
    TEMPORAL = "Temporal"
    WORKER = "worker"
    NATS = "NATS"


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment, and what happens until then; `since` is given where that lies beside the way to the client."""

    name: str
    until: str
    who: Who
    since: str = ""


MOMENTS = (
    Moment("enqueued", "request read, row written", Who.CLIENT),
    Moment("claimed", "row committed, then claimed", Who.POSTGRES),
    Moment("workflow_started", "workflow started", Who.TEMPORAL),
    Moment("task_started", "workflow task handed out", Who.TEMPORAL),
    Moment("step_started", "workflow runs, step begins", Who.WORKER),
    Moment("begun", "connection for the step", Who.WORKER),
    Moment("asked", "turn read, prompt made", Who.WORKER),
    Moment("turn_ended", "answer decided, end written", Who.POSTGRES),
    Moment("step_ended", "step written", Who.POSTGRES),
    Moment(HEARD, "end committed, event heard", Who.NATS),
    Moment("reply", "reply heard", Who.CLIENT, since="enqueued"),
    Moment("announced", "end marked as announced", Who.POSTGRES, since="turn_ended"),
    Moment("workflow_completed", "workflow completed", Who.TEMPORAL, since="turn_ended"),
)


class Stage(Strict):
    """A stage of the median turn. `took` is the median over all turns, and `began` the sum of those before it.

    Medians do not quite add up: the last stage may end somewhat before or after the median of whole turns.
    """

    name: str
    text: str
    who: Who
    began: float
    """In ms since the request."""
    took: float
    """In ms."""
    beside: bool
    """Whether the client's event does not wait for it."""

    @property
    def ended(self) -> float:
        """In ms since the request."""
        return self.began + self.took


def stages_of(turns: Sequence[Mapping[str, float]]) -> list[Stage]:
    """The stages of turns by their moments, in ms since their requests: first the way to the event, then the others."""
    names = [moment.name for moment in MOMENTS if any(moment.name in turn for turn in turns)]
    at = {name: median(turn[name] for turn in turns if name in turn) for name in names}
    known = sorted((moment for moment in MOMENTS if moment.name in at), key=lambda m: at[m.name])
    path = [moment for moment in known if not moment.since and at[moment.name] <= at.get(HEARD, 0.0)]
    stages: list[Stage] = []
    ends, last = {REQUESTED: 0.0}, REQUESTED
    for moment in path:
        stages.append(_stage(turns, moment, last, ends))
        ends[moment.name], last = stages[-1].ended, moment.name
    for moment in (k for k in known if k not in path):
        since = moment.since if moment.since in ends else last
        stages.append(_stage(turns, moment, since, ends, beside=True))
    return stages


def _stage(
    turns: Sequence[Mapping[str, float]],
    moment: Moment,
    since: str,
    ends: Mapping[str, float],
    *,
    beside: bool = False,
) -> Stage:
    both = [turn for turn in turns if moment.name in turn and (since == REQUESTED or since in turn)]
    took = median(turn[moment.name] - turn.get(since, 0.0) for turn in both)
    return Stage(name=moment.name, text=moment.until, who=moment.who, began=ends[since], took=took, beside=beside)
