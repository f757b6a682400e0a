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
    parts_of,
    prepare,
    turn_moves,
)

_CALL = Script("a", ((Calls(("x",)),), (Ends(),)))
_PLAIN = Script("b", ((Ends(),),))


def _world(name: str, says: str, cast: Cast) -> World:
    return World(
        name=name,
        says=says,
        prepare=lambda pool: prepare(pool, [ALICE]),
        moves=lambda view: turn_moves(cast, view),
        net=net_of(cast),
        at_end=not_over,
        parts=parts_of(cast),
    )


def worlds() -> Iterator[World]:
    """The small one for every run of the tests, and the large one."""
    yield _world(
        "small",
        "one agent, one turn with a call: report and repeat, timeout, stop, crashed and late workers",
        Cast((_CALL,), stops=("a",), rules=("suspended", "stop"), loses=False),
    )
    yield _world(
        "turns",
        "one agent, two turns, a call, its report and repeat, a timeout, a stop, a fence, crashed and late workers",
        Cast((_CALL, _PLAIN), stops=("a", "b"), reaps=("a",)),
    )
