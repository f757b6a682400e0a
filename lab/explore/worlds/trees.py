"""Forks of two: how they begin, and each way of joining, against stop, deadline and late children (§6, join).

The parent sleeps already; `small` has how it gets there. A fenced child fails. The net claims for the children.
"""

from collections.abc import Iterator
from typing import Any, Literal

from lab.explore.actors.cast import ALICE, BOB, CAROL, RED, WAIT_SECONDS, Calls, Cast, Ends, Fork, Script
from lab.explore.world import World
from lab.explore.worlds.turns import world_of
from turnstile.ledger.trees.batches import Batch
from turnstile.schema.ids import AgentId

_ENDS = (Ends(),)
_CALLS = (Calls(("x",)),)
_PARENT = Script("a", (_CALLS, _ENDS))
_CHILDREN = (Script("b", (_ENDS,), agent=BOB), Script("c", (_ENDS,), agent=CAROL))


def worlds() -> Iterator[World]:
    """How forks begin, one world for each way of joining, and trees of other shapes."""
    yield _fork(
        "fork",
        "a call that is forked, one child at a time or both, while it times out, and its turn is stopped",
        start="asked",
        reaps=(),
        times_out=True,
    )
    yield _fork("join-all", "two children that have not begun; one may fail", claims=(ALICE,))
    yield _fork("join-fast", "all of two, where the first failure decides", start="begun", fail_fast=True)
    yield _fork("join-any", "the first of two; the other is stopped", join="any")
    yield _fork("join-finish", "the first of two; the other goes on", start="begun", join="any", losers="finish")
    yield _fork("join-first", "two of two by first_k", start="begun", join="first_k", k=2)
    yield _fork(
        "join-quorum",
        "a quorum of two; a deadline leaves what succeeded",
        start="begun",
        join="quorum",
        k=2,
        losers="finish",
        partial_at_deadline=True,
    )
    yield world_of(
        "chain",
        "a child that forks a child: stops and ends go down, results go up",
        Cast(
            (
                _PARENT,
                Script("b", (_CALLS, _ENDS), agent=BOB),
                Script("c", (_ENDS,), agent=CAROL),
            ),
            stops=("a",),
            reaps=("b",),
            loses=False,
            sweeps=False,
            forks=(
                Fork("a", ("b",), Batch(WAIT_SECONDS), "begun"),
                Fork("b", ("c",), Batch(WAIT_SECONDS), "asked"),
            ),
            announces=False,
            times_out=False,
            claims=(),
        ),
    )

    yield _walls("walls", "a call of one channel goes on where an agent writes that another channel asks, too", "reuse")
    yield _walls("walls-clone", "a call of one channel reads where an agent wrote that another channel asks", "clone")


def _walls(name: str, says: str, strategy: Literal["reuse", "clone"]) -> World:
    """Two channels that share an agent, which the call of one names and whose turn the other asks for."""
    child = Script("b", (_ENDS,), agent=BOB if strategy == "reuse" else CAROL, strategy=strategy)
    cast = Cast(
        (_PARENT, child, Script("d", (_ENDS,), agent=BOB, channel=RED)),
        loses=False,
        sweeps=False,
        forks=(Fork("a", ("b",), Batch(WAIT_SECONDS), "asked"),),
        announces=False,
        times_out=False,
    )
    return world_of(name, says, cast)


def _fork(
    name: str,
    says: str,
    *,
    start: Literal["asked", "forked", "begun"] = "forked",
    reaps: tuple[str, ...] = ("b",),
    times_out: bool = False,
    claims: tuple[AgentId, ...] = (),
    **plan: Any,
) -> World:
    """A fork of two by this plan, whose parent is stopped."""
    cast = Cast(
        (_PARENT, *_CHILDREN),
        stops=("a",),
        reaps=reaps,
        loses=False,
        sweeps=False,
        forks=(Fork("a", ("b", "c"), Batch(WAIT_SECONDS, **plan), start),),
        announces=False,
        times_out=times_out,
        claims=claims,
    )
    return world_of(name, says, cast)
