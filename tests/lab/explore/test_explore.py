"""The small world is explored whole; what is wrong on purpose is found, and its path can be replayed."""

import json
from typing import Any

import pytest

from lab.explore.crew import LoneCrew
from lab.explore.mutations import MUTATIONS, mutate, mutated
from lab.explore.pairs import try_pairs
from lab.explore.search import Options, explore
from tests.lab.explore.conftest import OpenExplorer
from turnstile.ledger.queries import all_queries

FOUND_HERE = (
    "begin_step wakes a turn that sleeps",
    "finish_turn leaves its stop live",
)
"""One that the audit sees, and one that only the net's way to the end shows; `make explore` has them all."""


async def test_the_first_orders_of_the_small_world_are_right(open_explorer: OpenExplorer) -> None:
    report = await explore("small", LoneCrew(await open_explorer("small")), Options(states=60))
    assert [(violation.what, violation.path) for violation in report.violations] == []
    assert not report.whole
    assert report.graph.expanded == 60
    assert (report.alone[0], report.healthy[0]) <= (6, 6)


@pytest.mark.long
async def test_every_order_of_the_small_world_is_right(open_explorer: OpenExplorer) -> None:
    report = await explore("small", LoneCrew(await open_explorer("small")), Options())
    assert [(violation.what, violation.path) for violation in report.violations] == []
    assert report.whole
    assert (report.graph.expanded, report.graph.transitions) == (228, 3101)
    assert (report.alone[0], report.healthy[0]) <= (6, 6)
    happened = {move for move, _ in report.graph.answers}
    assert {"enqueue", "claim", "begin", "call", "report", "apply", "expire", "finish", "stop", "cancel"} <= happened


FENCED = ("enqueue a", "claim alice", "begin a 1", *["net engine"] * 8)


async def test_a_write_that_comes_later_is_in_no_other_state(open_explorer: OpenExplorer) -> None:
    """The fence announces its turn; the mark of that would come within 0.1 s, in the state that is loaded by then."""
    explorer = await open_explorer("small")
    assert await explorer.replay(FENCED) == []
    place, known = explorer.place, dict(explorer.place.rows)
    await place.pool.soon.flush(5)
    await place.changes()
    assert place.rows == known
    [over] = [json.loads(text) for (table, _), text in known.items() if table == "turn_outcomes"]
    assert over["announced_at"] is None
    assert await explorer.replay(["net unannounced"]) == []
    [over] = [json.loads(text) for (table, _), text in place.rows.items() if table == "turn_outcomes"]
    assert over["announced_at"] is not None


@pytest.mark.parametrize("name", FOUND_HERE)
async def test_a_wrong_statement_is_found_and_its_path_replayed(open_explorer: OpenExplorer, name: str) -> None:
    [mutation] = [m for m in MUTATIONS if m.name == name]
    with mutated(name):
        crew = LoneCrew(await open_explorer(mutation.world))
        report = await explore(mutation.world, crew, Options(first_only=True))
    assert report.violations
    path = report.violations[0].path
    with mutated(name):
        assert await (await open_explorer(mutation.world)).replay(path)
    assert await (await open_explorer(mutation.world)).replay(path) == []


def test_every_mutation_changes_its_statement_and_puts_it_back() -> None:
    right = dict(all_queries())
    for mutation in (m for m in MUTATIONS if not m.function):
        with mutated(mutation.name):
            assert all_queries()[mutation.query] != right[mutation.query]
        assert all_queries() == right


async def test_moves_that_run_at_once_end_as_in_one_order_or_the_other(open_explorer: OpenExplorer) -> None:
    explorer = await open_explorer("small")
    report = await try_pairs(explorer.place.url, explorer.world, most=12, states=40)
    assert [(violation.what, violation.path) for violation in report.violations] == []
    assert report.counts["waited"] > 0


CUT_BETWEEN_TURNS = (
    *("enqueue a", "enqueue b", "claim alice", "begin a 1", "finish a 1"),
    *("claim alice", "begin b 1", "cut b 1", "begin b 2", "finish b 2", "begin b 2", "cut b 1", "fence b"),
)


async def test_conversations_and_cuts_are_part_of_a_state(open_explorer: OpenExplorer) -> None:
    explorer = await open_explorer("talk")
    assert await explorer.replay(CUT_BETWEEN_TURNS) == []
    tables = [table for table, _ in explorer.place.rows]
    assert (tables.count("conversations"), tables.count("boxes"), tables.count("turn_outcomes")) == (1, 5, 2)
    [talk] = [json.loads(text) for (table, _), text in explorer.place.rows.items() if table == "conversations"]
    assert talk["output_box_id"] == "bbbbbbbb-0000-7000-8000-00000000000e"  # the one that the cut has made


async def test_every_wrong_function_replaces_one_that_is_there(open_explorer: OpenExplorer) -> None:
    url = (await open_explorer("small")).place.url
    wrong = [m for m in MUTATIONS if m.functions()]
    assert len(wrong) >= 5
    for mutation in wrong:
        place = (await open_explorer("small")).place.url if mutation.behind else url
        assert await mutate(place, mutation.name) == place


WALLED = ("enqueue d", "open a1x", "claim bob", "begin d 1", "finish d 1", "fork a1x")


async def test_a_call_does_not_reach_what_another_channel_asked_its_agent(open_explorer: OpenExplorer) -> None:
    for world in ("walls", "walls-clone"):
        assert await (await open_explorer(world)).replay(WALLED) == []
    wrong = await open_explorer("walls-clone")
    await mutate(wrong.place.url, "channel_boxes gives what another channel wrote last")
    assert any("of another channel" in each for each in await wrong.replay(WALLED))


LATE_CHILD = ("finish b 1", "finish c 1", "apply a join-batch-call_a1x", "begin a 2", "finish a 2")


async def test_a_fork_of_two_is_answered_by_the_first_and_the_late_child_changes_nothing(
    open_explorer: OpenExplorer,
) -> None:
    explorer = await open_explorer("join-finish")
    assert await explorer.replay(LATE_CHILD) == []
    rows: dict[str, list[Any]] = {}
    for (table, _), text in explorer.place.rows.items():
        rows.setdefault(table, []).append(json.loads(text))
    assert [(row["status"], row["decided_by"]) for row in rows["pmo_batches"]] == [("success", "turn_b")]
    assert [row["status"] for row in rows["pmo_batch_tasks"]] == ["success", "success"]
    assert [row["ended"] for row in rows["turn_nodes"]] == [True, True, True]


TIMED_OUT = ("deadline a", "expire a", "open a1x", "apply a timeout-call_a1x")


async def test_a_call_that_is_timed_out_is_not_forked(open_explorer: OpenExplorer) -> None:
    assert await (await open_explorer("fork")).replay(TIMED_OUT) == []
    wrong = await open_explorer("fork")
    await mutate(wrong.place.url, "open_batch forks a call that is timed out")
    assert any("running_batches_hold_their_call" in each for each in await wrong.replay(TIMED_OUT))


LATE_TRUTH = (
    *("enqueue a", "enqueue b", "claim alice", "begin a 1", "reserve a 1 1", "raise a", "reserve a 1 2", "limit"),
    *("claim bob", "begin b 1", "reserve b 1 1", "finish a 1 1", "finish a 1 2", "finish b 1"),
)


async def test_a_late_truth_corrects_what_was_booked_whole_and_a_closed_grant_goes_back(
    open_explorer: OpenExplorer,
) -> None:
    """Two attempts of `a` reserve 40 each of its 80; the first, booked whole meanwhile, tells of 25. `b` is refused."""
    explorer = await open_explorer("budget-day")
    assert await explorer.replay(LATE_TRUTH) == []
    found = [json.loads(text) for (table, _), text in explorer.place.rows.items() if table == "budgets"]
    budgets: dict[str, Any] = {row["kind"]: row for row in found}
    grant, day = budgets["turn"], budgets["day"]
    assert (grant["max_tokens"], grant["spent_tokens"], grant["unsettled_tokens"], grant["returned_tokens"]) == (
        *(80, 65, 40),
        15,
    )
    assert (day["max_tokens"], day["spent_tokens"], day["reserved_tokens"]) == (45, 65, 0)
    assert grant["closed_at"] is not None


async def test_a_wrong_booking_is_found_by_the_audit(open_explorer: OpenExplorer) -> None:
    wrong = await open_explorer("budget-day")
    await mutate(wrong.place.url, "raise_budget takes nothing from above")
    assert any("budgets_reserve_what_is_open" in each for each in await wrong.replay(("enqueue a", "raise a")))
