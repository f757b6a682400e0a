"""Schedules in the ledger: a time makes at most one turn, whoever fires and whatever goes wrong (protocol §20)."""

import asyncio
import random
import time
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, BOB, CHANNEL, PROJECT, ask, profile, rows, value
from tests.support.ledger.budgets import limit
from tests.support.ledger.schedules import ADA, bridge_of, codes, firings, make_due, put, put_on, schedule_of
from tests.support.waiting import Counting, overtaken
from turnstile.doctor.examine import examine
from turnstile.ledger.access.tokens import add_token, revoke_token
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import LOCAL, put_profile, set_agent_status
from turnstile.ledger.schedules import (
    due_of,
    find_schedule,
    list_due_schedules,
    list_schedules,
    pause_schedule,
    remove_schedule,
    resume_schedule,
)
from turnstile.schema.access import Caller, GatewayRole
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.wire.limits import Admission
from turnstile.settings import Settings

EVE, BOSS = Caller("eve"), Caller("boss", operates=True)


async def turns(pool: Pool) -> list[str]:
    """The correlations of all turns."""
    found = await rows(pool, "SELECT correlation_id AS name FROM state.agent_inbox ORDER BY created_at")
    return [row["name"] for row in found]


async def alter(pool: Pool, what: str, *arguments: object) -> None:
    """Change schedules as only a test does."""
    await rows(pool, f"UPDATE resource.schedules SET {what}", *arguments)  # noqa: S608 -- constants


async def only(pool: Pool, name: str = "tick") -> dict[str, Any]:
    [row] = await rows(pool, "SELECT * FROM resource.schedules WHERE schedule_id = $1", name)
    return row


async def test_bridges_that_race_fire_each_time_once(counting: Counting) -> None:
    names = [f"s{number}" for number in range(20)]
    await put(counting, *names)
    for _ in range(2):
        await make_due(counting)
        await asyncio.gather(*(bridge_of(counting).look() for _ in range(4)))
    for name in names:
        fired = await firings(counting, name)
        assert len(fired) == len({turn for turn, _ in fired}) == 2
    assert len(await turns(counting)) == len(set(await turns(counting))) == 40


async def test_a_firing_that_waits_for_another_bridge_s_is_left_to_it(counting: Counting) -> None:
    """What one has read and not fired yet, another fires: whoever is late does nothing."""
    await put(counting, "tick")
    await make_due(counting)
    [row] = await counting.run(lambda conn: list_due_schedules(conn, ahead_seconds=0, share=9, row_limit=9))
    await bridge_of(counting).look()
    late = bridge_of(counting)
    assert await late._settle(row)
    assert len(await firings(counting)) == len(await turns(counting)) == 1


async def test_a_schedule_that_is_put_while_it_fires_is_fired_as_it_was_or_is(counting: Counting) -> None:
    await put(counting, "tick")
    await make_due(counting)
    await overtaken(
        counting,
        lambda conn: put_on(conn, "tick", instruction="new"),
        counting.run(lambda conn: put_on(conn, "tick", instruction="newer")),
    )
    await bridge_of(counting).look()
    assert await codes(counting) == [None]  # put again with the same timing, it keeps its time
    texts = "SELECT content ->> 'text' FROM cards WHERE metadata ->> 'type' = 'task.instruction'"
    assert await value(counting, texts) == "newer"


async def test_of_what_was_missed_the_latest_is_made_up_for_unless_it_is_too_late(counting: Counting) -> None:
    await put(counting, "tick")
    await make_due(counting, 3 * 3600 + 600)  # three times have passed, the last ten minutes ago
    await bridge_of(counting).look()
    assert await codes(counting) == [None]
    late = "SELECT extract(epoch FROM fired_at - nominal_at)::float8 FROM state.schedule_firings"
    assert 590 < await value(counting, late) < 660
    await put(counting, "strict", catchup_seconds=60)
    await make_due(counting, 600, "strict")
    await bridge_of(counting).look()
    assert await codes(counting, "strict") == ["missed"]
    for name in ("tick", "strict"):
        assert 0 < (await only(counting, name))["next_at"].timestamp() - time.time() <= 3600


async def test_a_clock_that_is_set_back_neither_silences_a_schedule_nor_fires_a_time_twice(counting: Counting) -> None:
    await put(counting, "tick", every_seconds=60)
    await alter(
        counting,
        "next_at = now() - interval '1 second', anchor_at = now() - interval '61 seconds'",
    )
    await bridge_of(counting).look()
    # it was an hour later as the next time was set
    await alter(
        counting,
        "looked_at = now() + interval '1 hour', next_at = now() + interval '1 hour'",
    )
    await bridge_of(counting).look()
    assert 0 < (await only(counting))["next_at"].timestamp() - time.time() <= 61
    assert await codes(counting) == [None]
    # the time that was fired comes again
    await alter(counting, "next_at = (SELECT nominal_at FROM state.schedule_firings)")
    await bridge_of(counting).look()
    assert len(await firings(counting)) == len(await turns(counting)) == 1
    assert (await only(counting))["next_at"].timestamp() > time.time()


async def test_a_refusal_is_a_firing_with_its_code_and_is_moved_past(counting: Counting) -> None:
    await put_profile(counting, PROJECT, profile("many", instances=True))
    await put(counting, "full", "retired")
    await put(counting, "beyond", agent_id=BOB, budget={"max_tokens": 0})
    await put(counting, "broke", agent_id=BOB, budget={"max_turns": 1})
    await put(counting, "crowd", agent_id=None, profile_name="many", overlap="allow")
    await put(counting, "rejects", agent_id=BOB, conversation_id="c1", overlap="reject")
    await ask(counting)
    await ask(counting)
    await ask(counting, BOB, conversation_id="c1", incoming={"CG-Sender": "ada"})
    await limit(counting, max_turns=0)
    await alter(
        counting,
        "settings = settings || '{\"agent_id\": \"gone\"}' WHERE schedule_id = 'retired'",
    )
    await make_due(counting)
    tight = Admission(max_queued_turns=1, max_instances=1)
    await bridge_of(counting, tight).look()
    found = {name: await codes(counting, name) for name in ("full", "retired", "beyond", "rejects")}
    assert found == {
        "full": ["queue_full"],
        "retired": ["unknown_agent"],
        "beyond": ["budget_exceeded"],
        "rejects": ["turn_in_progress"],
    }
    assert await codes(counting, "broke") == ["budget_exceeded"]
    assert await codes(counting, "crowd") == ["budget_exceeded"]
    assert await rows(counting, "SELECT FROM resource.schedules WHERE next_at < now()") == []


async def test_an_interrupt_stops_what_is_queued_and_fires_once(counting: Counting) -> None:
    await put(counting, "tick", conversation_id="c1", overlap="interrupt")
    for count in (1, 2, 3):
        await make_due(counting)
        await asyncio.gather(*(bridge_of(counting).look() for _ in range(3)))
        assert await codes(counting) == [None] * count
    ended = await rows(counting, "SELECT status, error_code FROM state.turn_outcomes")
    assert all(row == {"status": "canceled", "error_code": "stopped"} for row in ended)
    assert (
        len(await rows(counting, "SELECT FROM state.agent_inbox WHERE message_type = 'turn' AND archived_at IS NULL"))
        <= 2
    )


async def test_a_poison_schedule_is_paused_and_a_hundred_others_fire(counting: Counting) -> None:
    await put_profile(counting, PROJECT, profile("many", instances=True))
    names = [f"s{number:03}" for number in range(100)]
    await put(counting, *names, agent_id=None, profile_name="many", overlap="allow")
    await put(counting, "poison", "venom")
    await alter(counting, "timing = '{\"cron\": \"nonsense\"}' WHERE schedule_id = 'poison'")
    await alter(counting, "settings = '{\"agent_id\": 5}' WHERE schedule_id = 'venom'")
    await make_due(counting)
    bridge = bridge_of(counting)
    for _ in range(3):
        await bridge.look()
    assert [await codes(counting, name) for name in names] == [[None]] * 100
    for name in ("poison", "venom"):
        assert await codes(counting, name) == ["schedule_invalid"]
        assert (await only(counting, name))["paused_because"] == "schedule_invalid"
    listed = await counting.run(lambda conn: list_schedules(conn, PROJECT, CHANNEL, "", 200))
    assert len([row.shown() for row in listed]) == 102


async def test_a_token_that_is_revoked_or_has_expired_pauses_its_schedules(counting: Counting) -> None:
    lines = [(await counting.run(lambda conn: add_token(conn, PROJECT, GatewayRole.CLIENT)))[1] for _ in range(2)]
    made, late = (line.token_id for line in lines)
    owners = [Caller(f"token.{token}") for token in (made, late)]
    for name, owner in zip(("revoked", "expired"), owners, strict=True):
        await put(counting, name, caller=owner)
    await make_due(counting)
    await rows(counting, "UPDATE state.gateway_tokens SET expires_at = now() WHERE token_id = $1", late)
    await counting.run(lambda conn: revoke_token(conn, PROJECT, made))
    assert (await only(counting, "revoked"))["paused_because"] == "owner_revoked"
    await bridge_of(counting).look()
    assert (await codes(counting, "revoked"), await codes(counting, "expired")) == ([], ["owner_revoked"])
    assert (await only(counting, "expired"))["paused_because"] == "owner_revoked"
    assert await turns(counting) == []


async def test_a_paused_schedule_does_not_fire_and_goes_on_from_its_next_time(counting: Counting) -> None:
    await put(counting, "tick")
    await make_due(counting)

    async def row() -> Any:
        return await counting.run(lambda conn: find_schedule(conn, PROJECT, CHANNEL, "tick"))

    before = await row()
    await counting.run(lambda conn: pause_schedule(conn, before))
    await bridge_of(counting).look()
    assert await turns(counting) == []
    await put(counting, "tick", instruction="other")  # stays paused
    assert (await only(counting))["paused_because"] == "paused"
    paused = await row()
    await counting.run(lambda conn: resume_schedule(conn, paused))
    await bridge_of(counting).look()
    assert await turns(counting) == []  # what it missed is not made up for
    assert due_of(await row(), schedule_of(), (await row()).next_at).nominal_at is None
    await make_due(counting)
    last = await row()
    await counting.run(lambda conn: remove_schedule(conn, last))
    await bridge_of(counting).look()
    assert (await turns(counting), await firings(counting)) == ([], [])


@pytest.mark.parametrize(
    ("fields", "caller", "code"),
    [
        ({"agent_id": "nobody"}, ADA, "unknown_agent"),
        ({"agent_id": None, "profile_name": "nobody"}, ADA, "unknown_profile"),
        ({"agent_id": None, "profile_name": "helper"}, ADA, "no_instances"),
        ({"every_seconds": None, "at": "2020-01-01T00:00:00Z"}, ADA, "never_fires"),
        ({}, EVE, "not_yours"),
        ({}, BOSS, None),
        ({}, ADA, None),
    ],
)
async def test_what_may_be_put(counting: Counting, fields: dict[str, Any], caller: Caller, code: str | None) -> None:
    await put(counting, "tick")
    if code is None:
        await put(counting, "tick", caller=caller, **fields)
        assert (await only(counting))["owner"] == caller.name
        return
    with pytest.raises(Refused) as refused:
        await put(counting, "tick", caller=caller, **fields)
    assert refused.value.code == code


async def test_a_retired_agent_is_refused_and_a_paused_one_queues(counting: Counting) -> None:
    await put(counting, "alice")
    await put(counting, "bob", agent_id=BOB)
    await set_agent_status(counting, PROJECT, ALICE, "retire", LOCAL)
    await set_agent_status(counting, PROJECT, BOB, "pause", LOCAL)
    await make_due(counting)
    await bridge_of(counting).look()
    assert (await codes(counting, "alice"), await codes(counting, "bob")) == (["agent_inactive"], [None])
    assert await value(counting, "SELECT status FROM state.agent_inbox") == "queued"


async def test_the_doctor_names_each_schedule_that_cannot_run(counting: Counting, database_url: str) -> None:
    await put_profile(counting, PROJECT, profile("many", instances=True))
    await put(counting, "gone", "held", "late", "asleep", "well")
    await put(counting, "single", agent_id=None, profile_name="many")
    await put(counting, "paused", agent_id=BOB)
    await set_agent_status(counting, PROJECT, BOB, "pause", LOCAL)
    await put_profile(counting, PROJECT, profile("many"))
    await alter(counting, "settings = '{\"agent_id\": \"gone\"}' WHERE schedule_id = 'gone'")
    await alter(counting, "paused_at = now(), paused_because = 'owner_revoked' WHERE schedule_id = 'held'")
    await alter(counting, "paused_at = now(), paused_because = 'paused' WHERE schedule_id = 'asleep'")
    await make_due(counting, 600, "late")
    checks = await examine(Settings.model_validate({"database": {"url": database_url}}), None, ())
    found = {check.name.removeprefix("schedule p1/"): check.says for check in checks if "schedule" in check.name}
    assert found.keys() == {"gone", "held", "late", "single", "paused"}
    assert found["late"] == "its time has come, and no bridge fires it"
    await make_due(counting, 1, "late")


async def test_no_caller_takes_the_correlation_of_a_firing(counting: Counting) -> None:
    with pytest.raises(BadRequest, match="may not begin with schedule:"):
        await ask(counting, correlation_id="schedule:tick@2026-01-01T00:00:00Z")


async def test_hammer_of_bridges_and_owners(counting: Counting, hammer_seconds: float) -> None:
    """Bridges fire while the schedules are put, paused, resumed, triggered and removed: no time makes two turns."""
    until = time.monotonic() + hammer_seconds / 2
    names = ["a", "b", "c", "d"]
    await put(counting, *names, every_seconds=1)

    async def fires() -> None:
        bridge = bridge_of(counting)
        while time.monotonic() < until:
            await bridge.look()

    async def changes(seed: int) -> None:
        dice = random.Random(seed)  # noqa: S311 -- reproducible
        while time.monotonic() < until:
            name = dice.choice(names)
            try:
                match dice.randrange(5):
                    case 0:
                        await put(counting, name, every_seconds=dice.choice([1, 2]))
                    case 1:
                        await alter(
                            counting,
                            "next_at = now() - interval '5 seconds' WHERE schedule_id = $1",
                            name,
                        )
                    case change:
                        action = {2: pause_schedule, 3: resume_schedule, 4: remove_schedule}[change]

                        async def run(conn: Any, name: str = name, action: Any = action) -> None:
                            await action(conn, await find_schedule(conn, PROJECT, CHANNEL, name))

                        await counting.run(run)
            except Refused as error:
                assert error.code in {"unknown_schedule", "never_fires"}  # noqa: PT017

    await asyncio.gather(fires(), fires(), fires(), changes(1), changes(2))
    found = [name for name in await turns(counting) if name.startswith("schedule:")]
    assert found
    assert len(found) == len(set(found))
