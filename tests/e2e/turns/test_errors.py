"""An error thrown at every fault point (`turnstile.runtime.faults`): the turn ends all the same, with the same rows."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.support.faults.points import HASTY, KINDS, PASSED, POINTS, Kind, Rows, played, unharmed
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.stack import Stack
from turnstile.runtime.faults import Fault

pytestmark = pytest.mark.stack(HASTY)


@pytest.fixture(scope="module")
async def expected(here: Stack) -> Rows:
    """What turns leave behind in a stack without faults."""
    return await unharmed(here)


@pytest.fixture
async def checked(here: Stack) -> AsyncIterator[Stack]:
    """The stack; protocol §2 holds after the test."""
    yield here
    async with here.pool.connection() as conn:
        await assert_invariants(conn)


OF_A_KIND = {kind: [point for point in POINTS if KINDS.get(point, "answered") == kind] for kind in PASSED}
EACH = [(kind, points[first::3]) for kind, points in OF_A_KIND.items() for first in range(3) if points[first::3]]
"""So that no two neighbours fail in one turn."""


@pytest.mark.parametrize(("kind", "points"), EACH, ids=[f"{kind}-{'+'.join(points)}" for kind, points in EACH])
async def test_errors_at_some_points_leave_the_same_rows(
    checked: Stack,
    expected: Rows,
    kind: Kind,
    points: Sequence[Fault],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(tmp_path))
    monkeypatch.setenv("TURNSTILE_FAULTS", ",".join(f"{point}=throw" for point in points))
    assert await played(checked, kind) == expected[kind]
    assert all(tmp_path.joinpath(point).exists() for point in points)


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
async def test_an_error_at_a_point_leaves_the_same_rows(
    checked: Stack, expected: Rows, point: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(tmp_path))
    monkeypatch.setenv("TURNSTILE_FAULTS", f"{point}=throw")
    kind = KINDS.get(point, "answered")
    assert await played(checked, kind) == expected[kind]
    assert tmp_path.joinpath(point).exists()
