"""One agent with two turns, a call, a report and its repeat, a timeout, a stop, crashed and late workers."""

from collections.abc import Iterator

from lab.explore.world import World
from lab.explore.worlds.turns import (
    ALICE,
    Calls,
    Cast,
    Ends,
    Script,
    net_of,
    not_over,
    part_of,
    prepare,
    turn_moves,
)

_CALL = Script("a", ((Calls(("x",)),), (Ends(),)))
_CALL_TOO = Script("b", ((Calls(("x",)),), (Ends(),)))
_PLAIN = Script("b", ((Ends(),),))
_NEXT = Script("c", ((Ends(),),))


def _world(name: str, says: str, cast: Cast) -> World:
    return World(
        name=name,
        says=says,
        prepare=lambda pool: prepare(pool, [ALICE]),
        moves=lambda view: turn_moves(cast, view),
        net=net_of(cast),
        at_end=not_over,
        part=part_of,
    )


def worlds() -> Iterator[World]:
    """The small one for every run of the tests, and the large one."""
    yield _world(
        "small",
        "one agent, one turn with a call: report and repeat, timeout, stop, crashed and late workers",
        Cast((_CALL,), stops=("a",), loses=False, sweeps=False),
    )
    yield _world(
        "queue",
        "one agent, two turns in its queue, one of which is stopped",
        Cast((_PLAIN, _NEXT), stops=("b",), reaps=("c",)),
    )
    yield _world(
        "turns",
        "one agent, two turns with a call each: reports and repeats, timeouts, stops, fences, crashed and late workers",
        Cast((_CALL, _CALL_TOO), stops=("a", "b"), reaps=("a", "b")),
    )
