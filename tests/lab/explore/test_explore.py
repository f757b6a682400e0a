"""The small world is explored whole; what is wrong on purpose is found, and its path can be replayed."""

import pytest

from lab.explore.crew import LoneCrew
from lab.explore.mutations import MUTATIONS, mutated
from lab.explore.pairs import try_pairs
from lab.explore.search import Options, explore
from tests.lab.explore.conftest import OpenExplorer
from turnstile.ledger.queries import all_queries

FOUND_HERE = ("begin_step wakes a turn that sleeps", "finish_turn leaves its stop live")
"""One that the audit sees, and one that only the net's way to the end shows; `make explore` has them all."""


async def test_every_order_of_the_small_world_is_right(open_explorer: OpenExplorer) -> None:
    report = await explore("small", LoneCrew(await open_explorer("small")), Options())
    assert [(each.what, each.path) for each in report.violations] == []
    assert report.whole
    assert (report.graph.expanded, report.graph.transitions) == (228, 3101)
    assert (report.alone[0], report.healthy[0]) <= (6, 6)
    happened = {move for move, _ in report.graph.answers}
    assert {"enqueue", "claim", "begin", "call", "report", "apply", "expire", "finish", "stop", "cancel"} <= happened


@pytest.mark.parametrize("name", FOUND_HERE)
async def test_a_wrong_statement_is_found_and_its_path_replayed(open_explorer: OpenExplorer, name: str) -> None:
    [mutation] = [each for each in MUTATIONS if each.name == name]
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
    for mutation in MUTATIONS:
        with mutated(mutation.name):
            assert all_queries()[mutation.query] != right[mutation.query]
        assert all_queries() == right


async def test_moves_that_run_at_once_end_as_in_one_order_or_the_other(open_explorer: OpenExplorer) -> None:
    explorer = await open_explorer("small")
    report = await try_pairs(explorer.place.url, explorer.world, most=12, states=40)
    assert [(each.what, each.path) for each in report.violations] == []
    assert report.counts["waited"] > 0


CUT_BETWEEN_TURNS = (
    *("enqueue a", "enqueue b", "claim alice", "begin a 1", "finish a 1"),
    *("claim alice", "begin b 1", "cut b 1", "begin b 2", "finish b 2", "begin b 2", "cut b 1", "fence b"),
)


async def test_conversations_and_cuts_are_part_of_a_state(open_explorer: OpenExplorer) -> None:
    explorer = await open_explorer("talk")
    assert await explorer.replay(CUT_BETWEEN_TURNS) == []
    tables = [table for table, _ in explorer.place.rows]
    assert (tables.count("conversations"), tables.count("memory_cuts"), tables.count("turn_outcomes")) == (1, 1, 2)
