"""Webhooks: each gets its turn's end once, whichever comes first, and nobody's replaces another's (protocol §17.6)."""

import pytest

from tests.support.ledger.agents import ALICE, PROJECT, begin, finish_on, lease, rows
from tests.support.ledger.webhooks import put_webhook_of
from tests.support.waiting import Counting, overtaken
from turnstile.ledger.pool import Pool
from turnstile.ledger.pushes.webhooks import ClaimedEvent, claim_events, fail_event, record_event_sent, remove_webhook
from turnstile.schema.errors import Refused
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.limits import Maker

ADA, BOB = Maker("token.ada"), Maker("token.bob")


async def begun(pool: Pool) -> TurnRef:
    turn = await lease(pool, ALICE)
    await begin(pool, turn)
    return turn


async def written(pool: Pool) -> list[tuple[str, str, str]]:
    """Type, turn and address of each event."""
    found = await rows(
        pool,
        "SELECT e.type, e.agent_turn_id, w.url FROM state.webhook_events e JOIN state.webhooks w"
        " USING (project_id, webhook_id) ORDER BY w.url",
    )
    return [(row["type"], row["agent_turn_id"], row["url"]) for row in found]


@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_webhook_that_is_set_while_its_turn_ends_gets_the_end_once(
    counting: Counting, *, ends_first: bool
) -> None:
    turn = await begun(counting)
    if ends_first:
        await overtaken(
            counting,
            lambda conn: finish_on(conn, turn),
            counting.run(lambda conn: put_webhook_of(conn, turn.agent_turn_id, ADA)),
        )
    else:
        await overtaken(
            counting,
            lambda conn: put_webhook_of(conn, turn.agent_turn_id, ADA),
            counting.run(lambda conn: finish_on(conn, turn)),
        )
    assert await written(counting) == [("turn.ended", turn.agent_turn_id, "https://token.ada/")]
    assert await rows(counting, "SELECT status FROM state.webhooks") == [{"status": "done"}]
    await counting.run(lambda conn: put_webhook_of(conn, turn.agent_turn_id, ADA))
    assert len(await written(counting)) == 1


async def test_each_caller_has_a_webhook_of_its_own_and_so_has_an_operator(counting: Counting) -> None:
    turn = await begun(counting)
    for maker in (ADA, BOB, ADA):
        await counting.run(lambda conn, maker=maker: put_webhook_of(conn, turn.agent_turn_id, maker))
    await counting.run(lambda conn: put_webhook_of(conn, None, Maker("op"), name=turn.agent_turn_id))
    await counting.run(lambda conn: finish_on(conn, turn))
    urls = [url for _, _, url in await written(counting)]
    assert urls == ["https://op/", "https://token.ada/", "https://token.bob/"]
    await counting.run(lambda conn: remove_webhook(conn, PROJECT, turn.agent_turn_id))  # the operator's
    assert [url for _, _, url in await written(counting)] == urls[1:]
    await counting.run(lambda conn: remove_webhook(conn, PROJECT, turn.agent_turn_id))  # those of the turn
    with pytest.raises(Refused, match="no such webhook"):
        await counting.run(lambda conn: remove_webhook(conn, PROJECT, turn.agent_turn_id))
    assert await rows(counting, "SELECT FROM state.webhook_events WHERE status = 'active'") == []


async def test_an_event_is_claimed_by_one_and_again_after_its_hold_with_the_same_id(counting: Counting) -> None:
    """What a bridge that dies before or after it has sent leaves behind."""
    turn = await begun(counting)
    await counting.run(lambda conn: put_webhook_of(conn, turn.agent_turn_id, ADA))
    await counting.run(lambda conn: finish_on(conn, turn))

    async def claimed(hold_seconds: float) -> list[ClaimedEvent]:
        times = {"hold_seconds": hold_seconds}
        return await counting.run(lambda conn: claim_events(conn, busy=[], share=9, row_limit=9, **times))

    [first], [event], none = await claimed(0.0), await claimed(60.0), await claimed(60.0)
    assert (event.event_id, none) == (first.event_id, [])
    assert [await counting.run(lambda conn: record_event_sent(conn, event)) for _ in range(2)] == [True, False]
    times = {"longest_pause": 1.0, "give_up_seconds": 1.0}
    late = await counting.run(lambda conn: fail_event(conn, event, "late", gone=True, **times))
    assert not late  # it was acknowledged
    assert await rows(counting, "SELECT status FROM state.webhooks") == [{"status": "done"}]
