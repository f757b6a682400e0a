"""An error thrown at every fault point (`turnstile.runtime.faults`): the turn ends all the same, with the same rows."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.faults import HASTY, KINDS, POINTS, Rows, played, unharmed
from tests.support.processes.stack import Stack
from tests.support.processes.stacks import Stacks
from turnstile.runtime.faults import Fault


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """One that mends soon what was broken."""
    async with stacks.open(HASTY) as opened:
        yield opened


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


@pytest.mark.parametrize("point", POINTS)
async def test_an_error_at_a_point_leaves_the_same_rows(
    checked: Stack, expected: Rows, point: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(tmp_path))
    monkeypatch.setenv("TURNSTILE_FAULTS", f"{point}=throw")
    kind = KINDS.get(point, "answered")
    assert await played(checked, kind) == expected[kind]
    assert tmp_path.joinpath(point).exists()
