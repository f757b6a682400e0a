"""One agent with a queue of turns: calls, reports and repeats, timeouts, stops, fences, crashed and late workers."""

from collections.abc import Iterator
from dataclasses import replace

from lab.explore.actors.cast import BOB, Calls, Cast, Cuts, Ended, Ends, Goes, Script
from lab.explore.world import AGES, AT_ONCE, World
from lab.explore.worlds.turns import world_of
from turnstile.schema.states import SteerPriority

_CALLS = (Calls(("x",)),)
_ENDS = (Ends(),)


def worlds() -> Iterator[World]:
    """The small ones come first."""
    yield world_of(
        "small",
        "one turn with a call: its report and repeat, a timeout, a stop; workers crash and come late",
        Cast((Script("a", (_CALLS, _ENDS)),), stops=("a",), loses=False, sweeps=False),
    )
    yield world_of(
        "queue",
        "two turns of one agent, one of them stopped, the other fenced",
        Cast((Script("b", (_ENDS,)), Script("c", (_ENDS,))), stops=("b",), reaps=("c",)),
    )
    yield world_of(
        "claimed",
        "two turns of one agent that their enqueues claim, if it is idle; one is stopped",
        Cast((Script("a", (_ENDS,), claimed=True), Script("b", (_ENDS,), claimed=True)), stops=("a",), reaps=("b",)),
    )
    yield world_of(
        "box",
        "two agents whose turns share an output box; one of the turns takes two steps",
        Cast((Script("a", ((Goes(),), _ENDS)), Script("b", (_ENDS,), agent=BOB, box="a")), stops=("a", "b")),
        bounds=replace(AT_ONCE, stranded_seconds=AGES),  # whoever frees a box leases no other agent: the net does
    )
    yield world_of(
        "talk",
        "two turns of one conversation; the memory is cut between them",
        Cast(
            (Script("a", (_ENDS,), talk="c"), Script("b", ((Cuts(), Ends()), _ENDS), talk="c")),
            stops=("b",),
            reaps=("b",),
            loses=False,
        ),
    )
    yield world_of(
        "interrupt",
        "three turns of one conversation, of which the last interrupts the first and passes by another requester's",
        Cast(
            (
                Script("a", (_ENDS,), talk="c"),
                Script("b", (_ENDS,), talk="c", by="eve"),
                Script("c", (_ENDS,), talk="c", over="interrupt"),
            ),
            reaps=("a",),
            loses=False,
            sweeps=False,
        ),
    )
    yield world_of(
        "rollback",
        "two turns of one conversation, of which the second rolls the first back, which may have cut the memory",
        Cast(
            (
                Script("a", (_ENDS,), talk="c"),
                Script("b", ((Cuts(), Ends()), _ENDS), talk="c"),
                Script("d", (_ENDS,), talk="c", over="rollback"),
            ),
            loses=False,
            sweeps=False,
        ),
    )
    yield world_of(
        "pair",
        "one turn with two calls at once, the result of one of which ends the turn",
        Cast(
            (Script("a", ((Calls(("x", "y"), ends=("y",)),), (Ends(), Ended()))),),
            stops=("a",),
            reaps=("a",),
            loses=False,
        ),
    )
    yield world_of(
        "asked",
        "a call that waits for people: two who decide differently, its expiry, a timeout, a stop",
        Cast((Script("a", ((Calls(("x",), held=("x",)),), _ENDS)),), stops=("a",), loses=False, sweeps=False),
    )
    yield world_of(
        "asked-pair",
        "a call that waits for people beside one that is sent at once",
        Cast(
            (Script("a", ((Calls(("x", "y"), held=("x",)),), _ENDS)),),
            stops=("a",),
            loses=False,
            sweeps=False,
        ),
    )
    yield world_of(
        "asking",
        "a tool that asks a person under its call: two who answer differently, its expiry, a report, a timeout, a stop",
        Cast((Script("a", (_CALLS, _ENDS)),), stops=("a",), asks=True, loses=False, sweeps=False),
    )
    yield world_of(
        "action",
        "a UI action against a queue of turns: busy, repeated, stopped, answered",
        Cast(
            (Script("a", (_ENDS,)), Script("c", (_CALLS, (Ended(),)), action=True), Script("b", (_ENDS,))),
            stops=("b", "c"),
            loses=False,
            sweeps=False,
        ),
    )
    yield world_of(
        "wiped",
        "one turn with a call, while Temporal's data is deleted again and again",
        Cast((Script("a", (_CALLS, _ENDS)),), stops=("a",), reaps=("a",), wipes=True),
    )
    yield world_of(
        "steered",
        "one turn of at most three steps, to which somebody says two things, one of them for when it is idle",
        Cast(
            (Script("a", (_ENDS, _ENDS, _ENDS)),),
            stops=("a",),
            reaps=("a",),
            steers=(("a", SteerPriority.ASAP), ("a", SteerPriority.WHEN_IDLE)),
            loses=False,
            sweeps=False,
        ),
    )
    yield world_of(
        "steered-calls",
        "two turns of one agent, one of which waits for a call and is steered, in the queue, too",
        Cast(
            (Script("b", (_ENDS,)), Script("a", ((Calls(("x",), ends=("x",)),), (Ends(), Ended()), _ENDS))),
            steers=(("a", SteerPriority.ASAP),),
            stops=("a",),
            loses=False,
            sweeps=False,
        ),
    )
    yield world_of(
        "budget",
        "one turn with a budget, of two steps: attempts that reserve, and report late; raised, lowered, fenced",
        Cast(
            (Script("a", ((Goes(),), _ENDS), budget=60, spends=True),),
            reaps=("a",),
            loses=False,
            sweeps=False,
            announces=False,
        ),
    )
    yield world_of(
        "budget-day",
        "two turns of a day with a limit, one of which has its grant of it; the grant raised, the day limited to less",
        Cast(
            (Script("a", (_ENDS,), budget=50, spends=True), Script("b", (_ENDS,), agent=BOB, spends=True)),
            reaps=("a",),
            day=100,
            loses=False,
            sweeps=False,
            announces=False,
        ),
    )
    yield world_of(
        "turns",
        "two turns of one agent with a call each: reports, repeats, timeouts, stops, fences; late workers",
        Cast((Script("a", (_CALLS, _ENDS)), Script("b", (_CALLS, _ENDS))), stops=("a", "b"), reaps=("a", "b")),
    )
